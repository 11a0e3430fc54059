"""What the books know about a request's blocks: which are published now, and in what two requests differ."""

from __future__ import annotations

from kvsan.harness.books import Books
from kvsan.harness.expectation import Expected
from kvsan.harness.step import Publication


class RequestIndex:
    """Implements ``kvsan.harness.target.PrefixIndex`` for one request."""

    __slots__ = ("_books", "_request", "block_size")

    def __init__(self, books: Books, request: Expected) -> None:
        self._books = books
        self._request = request
        self.block_size = books.block_size

    def has(self, group: int, block: int) -> bool:
        """Whether a unit with the request's own content is published for its tenant."""
        identity = int(self._request.life.chain[(block + 1) * self.block_size - 1]) ^ self._books.masks[group]
        return (group, identity, self._request.salt) in self._books.contents


def difference(publication: Publication, request: Expected, block_size: int) -> str:
    """Name the key components in which a published block and a request's own differ.

    Where the tokens differ the block is another one altogether, and the rest of the key is beside the point.
    """
    publisher = publication.publisher
    stop = (publication.block + 1) * block_size
    if publisher.life.tokens[:stop] != request.life.tokens[:stop]:
        return "tokens"
    parts = []
    if publication.salt != request.salt:
        parts.append("salt")
    ours, theirs = request.adapter, publication.adapter
    if ours != theirs:
        if ours is None or theirs is None or ours.name != theirs.name:
            parts.append("adapter name")
        else:
            parts.append("adapter id")
    if publisher.media != request.media:
        parts.append("media")
    return " and ".join(parts) or "position"
