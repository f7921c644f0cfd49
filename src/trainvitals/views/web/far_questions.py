"""`POST /api/v1/reader`: what `trainvitals reader` answers over ssh, to a program that has the token of this server."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from trainvitals.journal.documents.fields import text

if TYPE_CHECKING:
    from trainvitals.lab.far import FarSide

MAX_SESSIONS = 32
"""Of those who ask; one more forgets the one that was quiet for longest, which then lists its runs anew."""
MOST_BYTES = 64 << 10
"""Of a question."""

MakeFarSide = Callable[[], "FarSide"]


class FarQuestions:
    """One far side for each who asks: it remembers what they have."""

    def __init__(self, make: MakeFarSide | None) -> None:
        """None where the runs are not those of this machine."""
        self._make = make
        self._sessions: OrderedDict[str, FarSide] = OrderedDict()
        self._lock = threading.Lock()

    async def answer(self, request: Request) -> Response:
        from trainvitals.lab import messages

        if self._make is None:
            return Response("this server shows other machines itself: ask those", 409)
        data = b""
        async for chunk in request.stream():
            data += chunk
            if len(data) > MOST_BYTES:
                return Response("a question is not that long", 413)
        try:
            question = messages.decode(data, most_json=MOST_BYTES, most_rest=0)
        except messages.MessageError as error:
            return Response(f"not a question: {error}", 400)
        body = await anyio.to_thread.run_sync(self._answer, question.json)
        return Response(body, media_type="application/octet-stream", headers={"cache-control": "no-store"})

    def _answer(self, question: Mapping[str, Any]) -> bytes:
        from trainvitals.lab.far import encode_answer

        return encode_answer(self._find(text(question.get("session")) or ""), question)

    def _find(self, session: str) -> FarSide:
        with self._lock:
            found = self._sessions.get(session)
            if found is None:
                assert self._make is not None
                found = self._sessions[session] = self._make()
            self._sessions.move_to_end(session)
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
            return found
