"""Bring the hosts of an allocation to a controller in another one: the far end of ``Guests``."""

import logging
import time
from pathlib import Path

import hydragnn_hpo
from hydragnn_hpo.errors import RunError
from hydragnn_hpo.launching.fleet.transport import Call, News, Transport
from hydragnn_hpo.launching.process_control import run_tag
from hydragnn_hpo.launching.wire.channel import Channel, wait
from hydragnn_hpo.launching.wire.dialer import Dialer
from hydragnn_hpo.launching.wire.door import door_file
from hydragnn_hpo.launching.wire.protocol import BEATS

logger = logging.getLogger(__name__)


class Visit:
    """A line to whoever is the controller; agents are started when he says so."""

    def __init__(self, transport: Transport, run_dir: Path) -> None:
        """Dial nobody yet.

        Args:
            transport: starts agents on the hosts that we hold.
            run_dir: of the run, which all hosts see.
        """
        self.transport, self.run_dir = transport, run_dir
        self._dialer = Dialer(str(door_file(run_dir)), time.monotonic())
        self._channel: Channel | None = None
        self._answered = self._beaten = 0.0
        self._ends_at: float | None = None

    @property
    def received(self) -> bool:
        """Say whether a controller hears us now."""
        return self._channel is not None

    def turn(self, seconds: float) -> None:
        """Do what is asked of us, waiting at most ``seconds`` for it.

        Raises:
            RunError: the controller will not have us.
        """
        now = time.monotonic()
        if self._channel is None:
            self._dial(now)
        wait([self._channel] if self._channel else [], seconds)
        if self._channel is not None:
            self._obey(self._channel)
        for news in self.transport.poll():
            self._tell(news)
        self._beat(time.monotonic())

    def _dial(self, now: float) -> None:
        self._channel = self._dialer.dial(now)
        if self._channel is None:
            return
        if self._dialer.plate and self._dialer.plate.allocation == self.transport.allocation:
            self.hang_up()
            raise RunError(
                f"{self.run_dir}: allocation {self.transport.allocation} runs it already, its "
                "controller is here: there is nothing to join."
            )
        self._answered = time.monotonic()
        visit = {"event": "visit", "version": hydragnn_hpo.__version__}
        visit |= {"tag": run_tag(self.run_dir), "allocation": self.transport.allocation}
        self._channel.send(visit | {"hosts": list(self.transport.hosts)})
        self._say_when()

    def _obey(self, channel: Channel) -> None:
        for message in channel.receive():
            self._answered = time.monotonic()
            match message["op"]:
                case "start":
                    assert self._dialer.plate is not None
                    call = Call(self.run_dir, self._dialer.plate)
                    self.transport.start(message["hosts"], call)
                case "bye":
                    self.hang_up()
                    raise RunError(
                        f"{self.run_dir}: this allocation cannot join: "
                        f"{message.get('why', 'the backend takes no guests')}; give all of them "
                        "the same backend, package and path."
                    )
        if channel.closed:
            self.hang_up()

    def _tell(self, news: News) -> None:
        logger.warning("host %s %s", news.host, news.reason)
        if self._channel is not None:
            told = {"event": "failed", "host": news.host, "reason": news.reason}
            self._channel.send(told)

    def _beat(self, now: float) -> None:
        """Show that we live, and see whether the controller does."""
        if self._channel is None or self._dialer.plate is None:
            return
        lease = self._dialer.plate.lease_seconds
        if now - self._answered > 3 * lease or (
            now - self._answered > lease and self._dialer.newer()
        ):
            self.hang_up()
        elif now - self._beaten > lease / BEATS:
            self._beaten = now
            self._channel.send({"event": "beat", "at": now})

    def leave(self, ends_at: float) -> None:
        """Tell that our hosts are taken from us at a time, in seconds since the epoch."""
        self._ends_at = ends_at
        self._say_when()

    def _say_when(self) -> None:
        if self._channel is not None and self._ends_at is not None:
            self._channel.send({"event": "leaving", "ends_at": self._ends_at})

    def hang_up(self) -> None:
        """End the line; agents have lines of their own."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
