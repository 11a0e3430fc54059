"""Real KV-cache managers at real releases: unpacked into a cache folder, driven inside a worker process."""
