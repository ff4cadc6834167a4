"""One function over many shards, on this machine: `map_here`.

A function is named as "package.module:function", takes a shard, and returns a result; both are plain JSON data. It may
be called again for the same shard, because its process can die, and then continues what it had begun. So another engine
(a work pool, a cluster) needs no more than these three things.
"""

from ratchet.scale.local import ShardCall, map_here

__all__ = ["ShardCall", "map_here"]
