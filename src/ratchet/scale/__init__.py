"""One function over many shards: `scale.map`, by processes of this machine, by Prefect's workers, or by a Ray cluster.

calls.py          the call of a function for one shard, which every engine carries out
mapping.py        `map`: what is finished already, and the engine for the others
result_folder.py  a folder of results, local or at a URL
local.py          the engine `here`: processes of this machine
child.py          one of these processes
on_ray.py         the engine `ray`; the engine `prefect` is flows/shards.py

A function is named as "package.module:function". It takes a shard and returns a result; both are plain JSON data. It
may be called again for the same shard, because its process can die.
"""

from ratchet.scale.mapping import map

__all__ = ["map"]
