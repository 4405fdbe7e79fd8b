"""Ask the observer one period ahead whether a run continues.

This file asks and passes the answers on. The observer decides whether a run continues.
"""

from hocket.runtime.engine.compute_lanes import Exchange
from hocket.runtime.engine.transport.transfers import Transfers
from hocket.runtime.progress.observer import Observer


class StopAhead:
    """Asks the observer one period ahead whether to run another period.

    So receives may run ahead of compute into the next period. Otherwise a receive could not be posted before the
    compute lane ends its period, and the transfer could not overlap with it. The observer still gets every number once,
    ascending from 0 to the number of periods run.

    Attributes:
        run: number of periods that the compute lane has run.
    """

    def __init__(self, repeats: int, observer: Observer, transfers: Transfers, exchange: Exchange) -> None:
        self._limit, self._observer, self._transfers, self._exchange = repeats, observer, transfers, exchange
        self._asked = 0
        self.run = 0

    def go_on(self, periods: int) -> bool:
        """True if the compute lane runs another period after `periods` periods.

        It also asks the observer about the period after that, tells the other lanes, and posts their transfers.
        """
        self.run = periods
        while self._asked <= min(periods + 1, self._limit):
            goes_on = self._observer.goes_on(self._asked)
            if not goes_on and self._asked < self._limit:
                self._limit = self._asked
            self._transfers.answer(self._asked < self._limit)
            self._exchange.answer(self._asked < self._limit)
            self._asked += 1
        self._transfers.post_all()
        return periods < self._limit
