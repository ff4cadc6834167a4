"""The model server.

app.py             routes, and what starts and ends with the server
handler.py         the path of one request
http_request.py    one HTTP request: body, deadline, refusal
server_metrics.py  metrics for Prometheus
formats/           request formats: bytes of a request to arrays of a model, and its answers to bytes
scoring.py         answers for rows of files; batch/: files in, shards of answers out
versions/          versions in memory: load, try, follow the alias, compute in batches
"""
