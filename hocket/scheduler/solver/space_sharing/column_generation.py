"""Column generation for space sharing among many distinct jobs.

The throughput that two jobs keep beside each other depends only on their kinds. A kind is a space-sharing class and a
scale factor. A role is a group of jobs on a column beside some job of a kind. It is enough to know the time of each
role, under two conditions. Balance: jobs of kind k are beside kind l for as long as jobs of kind l are beside kind k.
Halves: no job is beside its own kind for more than half of the kind's total time with itself. The pairs can then be
constructed afterwards (pairing.py). This is exact, with as many roles as jobs times kinds, instead of a variable for
each two jobs.

A role enters the linear program when the duals show a gain. A balance row without roles has no price (dual); it gets
the price at which the best roles of both sides gain equally, so a role enters only together with a partner. With these
prices, and with the price of each job's time raised by the gain of its best missing role, the duals bound all
solutions with any roles.
Source: Narayanan's dissertation, section 5.3.1; column generation (Dantzig and Wolfe 1960).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hocket.scheduler.model.allocation import Allocation
from hocket.scheduler.model.snapshot import Pairs, Snapshot
from hocket.scheduler.solver.lp.linear_program import Basis, LinearProgram, Solution, solve
from hocket.scheduler.solver.lp.to_allocation import reasons
from hocket.scheduler.solver.lp.ungroup import Entries
from hocket.scheduler.solver.lp.variables import AllocationVariables, Constraints
from hocket.scheduler.solver.space_sharing.pairing import laid_out

MOST_GROUPS = 256  # with more groups, roles are faster than a variable for each two groups
_ROUNDS = 60
_CLOSE = 1e-8  # relative gap at which a solution is accepted
_GAIN = 1e-10  # smallest gain of a useful role
_ENTRANTS = 4  # roles per group that enter in one round
_USED = 1e-9  # tolerance of times
_LEAST = 1e-4  # smallest unit of a demand row, relative to a job's maximum throughput
_BASIC = 1  # a state in a basis
_MORE, _FEW = 1.25, 100  # growth in roles (factor, count) beyond which the basis is not reused


@dataclass(frozen=True, eq=False)
class ColumnObjective:
    """Objective: maximize the value of throughputs, or the met fraction of demands.

    Attributes:
        worth: value of a step per second, by group, or by group and column.
        due: demand of a job of each group in steps per second, 0 for no demand; None for no demands at all. The
            fraction that can be met of all demands is maximized, plus the value.
        kept: True to require all of the demand and maximize only the value.
    """

    worth: np.ndarray
    due: np.ndarray | None = None
    kept: bool = False


@dataclass(frozen=True, eq=False)
class ColumnSolution:
    """Solution found by column generation.

    The cost is minus the objective that is maximized.

    Attributes:
        entries: entries of an allocation.
        duals: duals of time and workers.
        bound: lower bound of the cost of any solution.
        objective: cost of this solution.
        prices: price (dual) of a step per second of demand, by group; 0 without demands.
        note: text if the round limit was reached before the optimum, else empty.
    """

    entries: Entries
    duals: np.ndarray
    bound: float
    objective: float
    prices: np.ndarray
    note: str = ""


def many(snapshot: Snapshot, keys: Sequence[np.ndarray] = ()) -> AllocationVariables | None:
    """Groups without pairs, if space sharing has too many groups for all pairs.

    Arguments:
        keys: arrays of shape (jobs,). Jobs are in one group only if they have equal values in each of these arrays.

    Returns:
        Groups and variables of jobs without a partner; None without space sharing or with few groups.
    """
    if snapshot.pairs is None or len(snapshot.jobs) <= MOST_GROUPS:
        return None
    shares = AllocationVariables(replace(snapshot, pairs=None), (*keys, snapshot.pairs.classes))
    return shares if shares.groups > MOST_GROUPS else None


class Roles:
    """Column generation: groups, their kinds, and the roles in the linear program.

    Attributes:
        shares: groups without pairs.
        kind: kind of each group.
        steps: steps per second of a job without a partner; shape (groups, columns).
        kept: fraction of throughput that a job keeps beside another; shape (kinds, partner kinds, columns).
        aim: current objective.
    """

    def __init__(self, shares: AllocationVariables, pairs: Pairs, aim: ColumnObjective) -> None:
        """
        Arguments:
            shares: groups without pairs; the jobs of a group have the same space-sharing class.
            pairs: space-sharing throughputs.
            aim: objective.
        """
        self.shares = shares
        self.kind, of = _kinds(shares, pairs.classes[shares.member])
        self.steps = np.zeros((shares.groups, len(shares.snapshot.columns)))
        self.steps[shares.first, shares.column] = shares.steps_first
        self.kept = pairs.kept[of[:, None], of[None, :]]
        jobs = np.bincount(self.kind, shares.count)
        scale = np.zeros(len(of))
        scale[self.kind] = shares.scale
        able = (self.kept > 0) & (self.kept.transpose(1, 0, 2) > 0) & (scale[:, None] == scale)[:, :, None]
        runs = np.zeros((len(of), self.steps.shape[1]), dtype=bool)
        np.logical_or.at(runs, self.kind, self.steps > 0)
        able &= runs[:, None] & runs
        able[np.arange(len(of)), np.arange(len(of))] &= (jobs > 1)[:, None]
        self._able = able[self.kind] & (self.steps > 0)[:, None, :]
        self._inside = np.zeros(self._able.shape, dtype=bool)
        self._half = np.zeros((2, 0), dtype=np.int64)  # groups and columns of rows added by _split
        self._ended: tuple[np.ndarray, ...] | None = None
        self.after(aim)

    def after(self, aim: ColumnObjective) -> None:
        """Set another objective; the roles found so far stay in the program."""
        self.aim = aim
        worth = np.asarray(aim.worth, dtype=float)
        self._worth = np.broadcast_to(worth if worth.ndim == 2 else worth[:, None], self.steps.shape)
        if aim.due is not None:
            # Unit of a demand row, so that its coefficients are near 1, except for tiny demands.
            fastest = self.steps.max(axis=1)
            self._unit = np.where(aim.due > 0, np.maximum(aim.due, _LEAST * fastest), fastest) * self.shares.count

    def best(self, place: str) -> ColumnSolution:
        """Solve the linear program repeatedly, and add roles until no other role can improve the objective.

        A role is a job group on a column, beside jobs of one kind. At most 60 rounds are solved.

        Arguments:
            place: name of the program in error messages.

        Returns:
            The last solution. If the round limit was reached before the optimum, `note` says so, and `bound` shows how
                far the optimum can be.

        Raises:
            Infeasible: the objective requires all of the demand (`ColumnObjective.kept`), which cannot be met.
            SolverTrouble: the solver failed.
        """
        for rounds in range(1, _ROUNDS + 1):
            role = np.nonzero(self._inside)
            program, balance, known = self._program(role)
            found = solve(program, place, self._basis(program, role, known), primal=True)
            self._keep(found, role, known)
            last = rounds == _ROUNDS
            if not last and self._split(role, found.x):
                continue
            gain, duals = self._gains(role, balance, found.duals)
            missing = np.where(self._inside, -np.inf, gain)
            lost = np.maximum(missing.max(axis=(1, 2), initial=0.0), 0.0)
            bound = program.bound(duals) - float(lost @ self.shares.count)
            far = found.objective - bound > _CLOSE * max(1.0, abs(found.objective))
            if not far or last or not self._enter(missing):
                limits = found.duals[: len(self.shares.limits.lower)]
                note = f"space sharing not optimal after {rounds} rounds of column generation" if far and last else ""
                prices = np.zeros(self.shares.groups)
                if self.aim.due is not None:
                    first = len(limits)
                    prices = np.maximum(found.duals[first : first + self.shares.groups], 0.0) / self._unit
                entries = laid_out(self.shares, self.kind, role, found.x)
                return ColumnSolution(entries, limits, bound, found.objective, prices, note)
        raise AssertionError(f"{place}: column generation did not return a solution in its last round, {_ROUNDS}")

    def _codes(self, role: tuple[np.ndarray, ...]) -> np.ndarray:
        """Integer code of each role; ascending, as roles are sorted."""
        return np.ravel_multi_index(role, self._able.shape)

    def _keep(self, found: Solution, role: tuple[np.ndarray, ...], known: np.ndarray) -> None:
        """Store the final basis of a program, if it is known.

        Arguments:
            role: group, kind of the partner and column of each role.
            known: codes of the balance rows.
        """
        basis = found.basis
        self._ended = None if basis is None else (*basis, self._codes(role), known)

    def _basis(self, program: LinearProgram, role: tuple[np.ndarray, ...], known: np.ndarray) -> Basis | None:
        """Basis of the last program, extended: new roles at 0, new rows basic.

        Arguments:
            role: group, kind of the partner and column of each role.
            known: codes of the balance rows.

        Returns:
            None if no basis is stored, or if it does not fit: many new roles, or demands added or removed.
        """
        if self._ended is None:
            return None
        columns, rows, codes, balances = self._ended
        alone, fixed = self.shares.variables, len(self.shares.limits.lower)
        extra = 0 if self.aim.due is None else 1
        if len(columns) != alone + len(codes) + extra or len(role[0]) > _MORE * len(codes) + _FEW:
            return None
        due = extra * self.shares.groups
        states = np.zeros(len(program.cost), dtype=np.int8)
        states[:alone] = columns[:alone]
        states[alone + np.searchsorted(self._codes(role), codes)] = columns[alone : alone + len(codes)]
        states[len(states) - extra :] = columns[len(columns) - extra :]
        sides = np.full(len(program.row_lower), _BASIC, dtype=np.int8)
        sides[: fixed + due] = rows[: fixed + due]
        sides[fixed + due + np.searchsorted(known, balances)] = rows[fixed + due : fixed + due + len(balances)]
        halves = rows[fixed + due + len(balances) :]
        first = fixed + due + len(known)
        sides[first : first + len(halves)] = halves
        return states, sides

    def _split(self, role: tuple[np.ndarray, ...], x: np.ndarray) -> bool:
        """Limit jobs that are beside their own kind for more than half of its time.

        One row (see `_halves`) is added for each such group and column.

        Arguments:
            role: group, kind of the partner and column of each role.
            x: values of the variables.

        Returns:
            True if a row was added.
        """
        group, beside, column = role
        time = x[self.shares.variables : self.shares.variables + len(group)]
        own = np.flatnonzero(self.kind[group] == beside)
        total = np.zeros((len(self.kept), self.kept.shape[2]))
        np.add.at(total, (beside[own], column[own]), time[own])
        over = time[own] / self.shares.count[group[own]] > total[beside[own], column[own]] / 2 + _USED
        new = np.stack([group[own[over]], column[own[over]]])
        self._half = np.hstack([self._half, new])
        return new.shape[1] > 0

    def _halves(self, group: np.ndarray, beside: np.ndarray, column: np.ndarray) -> tuple[np.ndarray, ...]:
        """Matrix entries (row, role, value) of the rows added by `_split`.

        Each row is for a group on a column: a job's time beside its own kind, minus half of the kind's total time with
        itself, is at most 0.

        Arguments:
            group, beside, column: group, kind of the partner and column of each role.
        """
        who, where = self._half[:, :, None]
        there = (self.kind[who] == self.kind[group]) & (self.kind[group] == beside) & (where == column)
        row, role = np.nonzero(there)
        itself = self._half[0, row] == group[role]
        return row, role, itself / self.shares.count[group[role]] - 0.5

    def _enter(self, gain: np.ndarray) -> bool:
        """Add the roles of each group with the largest gains; True if any was added."""
        flat = gain.reshape(len(gain), -1)
        count = min(_ENTRANTS, flat.shape[1])
        best = np.argpartition(-flat, count - 1, axis=1)[:, :count]
        group, at = np.nonzero(np.take_along_axis(flat, best, axis=1) > _GAIN)
        self._inside.reshape(len(gain), -1)[group, best[group, at]] = True
        return len(group) > 0

    def _program(self, role: tuple[np.ndarray, ...]) -> tuple[LinearProgram, np.ndarray, np.ndarray]:
        """Linear program with these roles.

        Arguments:
            role: group, kind of the partner and column of each role.

        Returns:
            The program.
            Index of each role's balance row among the balance rows; -1 for a kind beside itself.
            Code of each balance row.
        """
        shares, (group, beside, column) = self.shares, role
        own, steps = self.kind[group], self._beside(role)
        first_role, level = shares.variables, shares.variables + len(group)
        index = first_role + np.arange(len(group))
        low, high = np.minimum(own, beside), np.maximum(own, beside)
        known, balance = np.unique((low * len(self.kept) + high) * self.steps.shape[1] + column, return_inverse=True)
        balance = np.where(own == beside, -1, balance)
        cost = [-self._worth[shares.first, shares.column] * shares.steps_first, -self._worth[group, column] * steps]
        # Twice what the time rows allow, so that these bounds have no price and all prices are of rows.
        extra = [(0.0, 2 * most) for most in shares.count[group].tolist()]
        none = np.zeros(0, dtype=np.int64)
        more = [Constraints(none, none, np.zeros(0), np.zeros(len(known)), np.zeros(len(known)))]
        types = len(shares.snapshot.types)
        first_balance = shares.groups + types
        rows = [group, shares.groups + shares.snapshot.type_of[column]]
        columns, values = [index, index], [np.ones(len(group)), shares.scale[group] / 2]
        if self.aim.due is not None:
            every = np.arange(shares.groups)
            parts = shares.steps_first / self._unit[shares.first]
            reached = np.concatenate([shares.first, every])
            variables = np.concatenate([np.arange(shares.variables), np.full(shares.groups, level)])
            filled = np.concatenate([parts, -self.aim.due * shares.count / self._unit])
            more.insert(
                0, Constraints(reached, variables, filled, np.zeros(shares.groups), np.full(shares.groups, np.inf))
            )
            rows.append(first_balance + group)
            columns.append(index)
            values.append(steps / self._unit[group])
            first_balance += shares.groups
            cost.append(np.array([0.0 if self.aim.kept else -1.0]))
            asks = self.aim.due > 0
            most = float((self.fastest()[asks] / self.aim.due[asks]).min(initial=np.inf))
            most = most if np.isfinite(most) else 1.0
            extra.append((1.0, 1.0) if self.aim.kept else (0.0, most))
        both = np.flatnonzero(balance >= 0)
        rows.append(first_balance + balance[both])
        columns.append(index[both])
        values.append(np.where(own < beside, 1.0, -1.0)[both])
        row, at, value = self._halves(*role)
        count = self._half.shape[1]
        more.append(Constraints(none, none, np.zeros(0), np.full(count, -np.inf), np.zeros(count)))
        rows.append(first_balance + len(known) + row)
        columns.append(index[at])
        values.append(value)
        base = shares.program(np.concatenate(cost), *more, extra=extra)
        entries = (np.concatenate([old, *new]) for old, new in ((base.rows, rows), (base.columns, columns)))
        added = dict(zip(("rows", "columns"), entries, strict=True))
        return replace(base, values=np.concatenate([base.values, *values]), **added), balance, known

    def _gains(
        self, role: tuple[np.ndarray, ...], balance: np.ndarray, duals: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gain of the objective per unit of time of every possible role.

        Arguments:
            role, balance: roles in the program, and the balance row of each.
            duals: duals of the program's rows.

        Returns:
            Gain of each role, -inf for impossible roles; shape (groups, kinds, columns).
            The duals, with new prices of the balance rows.
        """
        shares, (group, beside, column) = self.shares, role
        own, types = self.kind[group], len(shares.snapshot.types)
        limits = shares.groups + types
        time, work = np.minimum(duals[: shares.groups], 0.0), np.minimum(duals[shares.groups : limits], 0.0)
        worth = self._worth
        if self.aim.due is not None:
            worth = worth + (np.maximum(duals[limits : limits + shares.groups], 0.0) / self._unit)[:, None]
        value = (worth * self.steps)[:, None, :] * self.kept[self.kind]
        value += time[:, None, None] + (shares.scale[:, None] / 2 * work[shares.snapshot.type_of])[:, None, :]
        value += self._half_gains(np.minimum(duals[len(duals) - self._half.shape[1] :], 0.0))
        gain = np.where(self._able, value, -np.inf)
        most, inside = np.full((2, *self.kept.shape), -np.inf)
        np.maximum.at(most, self.kind, gain)
        np.maximum.at(inside, self.kind, np.where(self._inside, gain, -np.inf))
        with np.errstate(invalid="ignore"):
            alike = (most.transpose(1, 0, 2) - most) / 2
        # Roles in the program have no gain at the solver's prices. A range of prices, maybe one point, preserves this.
        price = np.clip(np.nan_to_num(alike), inside.transpose(1, 0, 2), -inside)
        completed = duals.copy()
        first_balance = limits + (0 if self.aim.due is None else shares.groups)
        both = np.flatnonzero(balance >= 0)
        sign = np.where(own < beside, 1.0, -1.0)[both]
        completed[first_balance + balance[both]] = sign * price[own[both], beside[both], column[both]]
        return gain + price[self.kind], completed

    def _half_gains(self, prices: np.ndarray) -> np.ndarray:
        """Gain of each role from the rows of `_split`; shape (groups, kinds, columns)."""
        found = np.zeros(self._able.shape)
        for group, column, price in zip(*self._half.tolist(), prices.tolist(), strict=True):
            kind = self.kind[group]
            found[self.kind == kind, kind, column] -= price / 2
            found[group, kind, column] += price / self.shares.count[group]
        return found

    def _beside(self, role: tuple[np.ndarray, ...]) -> np.ndarray:
        """Steps per second of a job in each role, beside its partner."""
        group, beside, column = role
        return self.steps[group, column] * self.kept[self.kind[group], beside, column]

    def fastest(self) -> np.ndarray:
        """Upper bound of the throughput of one job of each group, in steps per second; shape (groups,).

        The bound holds for a job that runs alone and for a job that shares its workers with any other job.
        """
        return self.steps.max(axis=1) * max(1.0, float(self.kept.max(initial=0.0)))


def sum_of(snapshot: Snapshot, shares: AllocationVariables, worth: np.ndarray, place: str) -> Allocation:
    """Allocation with the maximum weighted sum of throughputs, by column generation.

    Arguments:
        shares: groups from `many`.
        worth: value of a step per second, by group, or by group and column.
        place: name of the program in error messages.
    """
    assert snapshot.pairs is not None
    each = np.broadcast_to(worth if worth.ndim == 2 else worth[:, None], (shares.groups, len(snapshot.columns)))
    unit = float((each[shares.first, shares.column] * shares.steps_first).max()) or 1.0
    found = Roles(shares, snapshot.pairs, ColumnObjective(each / unit)).best(place)
    total = -found.objective * unit
    gap = max(0.0, found.objective - found.bound) / max(1.0, abs(found.objective))
    return Allocation(*found.entries, total, gap, reasons(shares, found.duals), shares.refused, found.note)


def _kinds(shares: AllocationVariables, classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Kind (class and scale factor) of each group, and the class of each kind.

    Arguments:
        classes: space-sharing class of each group.
    """
    table = np.stack([classes, shares.scale])
    _, first, kind = np.unique(table, axis=1, return_index=True, return_inverse=True)
    return kind.ravel(), classes[first]
