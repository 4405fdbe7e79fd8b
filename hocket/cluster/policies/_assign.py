"""Assignment: every row to one column, columns with room for several rows, at the least sum of costs.

Rows are placed one after the other, each along the cheapest way of moving others on; the prices that this leaves on rows and
columns prove in the end that no other assignment costs less.
Source: successive shortest augmenting paths (Tomizawa 1971; Jonker and Volgenant 1987).
"""

import numpy as np


def assign(cost: np.ndarray, room: np.ndarray) -> tuple[np.ndarray, float]:
    """The column of each row, and a bound: no assignment costs less.

    Arguments:
        cost: shape (rows, columns); infinite where a row cannot be. room: rows that each column has room for.

    Raises:
        ValueError: there is no assignment.
    """
    rows, columns = cost.shape
    of_row = np.full(rows, -1, dtype=np.int64)
    price = np.zeros(columns)  # what a place in a full column costs on top
    held: list[list[int]] = [[] for _ in range(columns)]
    room_left = room.astype(np.int64).tolist()
    for row in range(rows):
        distance = cost[row] + price
        j = int(distance.argmin())
        if (
            room_left[j] and distance[j] < np.inf
        ):  # it is cheapest where there is room: nobody moves on, no price changes
            room_left[j] -= 1
            held[j].append(row)
            of_row[row] = j
            continue
        through = np.full(columns, row)  # the row that would move into a column
        open_ = np.ones(columns, dtype=bool)
        while True:
            masked = np.where(open_, distance, np.inf)
            j = int(masked.argmin())
            reached = float(masked[j])
            if not np.isfinite(reached):
                raise ValueError(f"row {row} has no place")
            open_[j] = False
            if room_left[j]:
                break
            # Any row that stands in this column can move on from it.
            there = np.array(held[j])
            moved = cost[there] - cost[there, j][:, None]
            least = moved.argmin(axis=0)
            onward = reached - price[j] + moved[least, np.arange(columns)] + price
            nearer = open_ & (onward < distance)
            distance[nearer] = onward[nearer]
            through[nearer] = there[least[nearer]]
        closed = ~open_
        price[closed] += reached - distance[closed]
        room_left[j] -= 1
        while True:
            mover = int(through[j])
            before = int(of_row[mover])
            held[j].append(mover)
            of_row[mover] = j
            if mover == row:
                break
            held[before].remove(mover)
            j = before
    bound = (cost + price).min(axis=1, initial=np.inf).sum() - float((price * room).sum())
    return of_row, float(bound)
