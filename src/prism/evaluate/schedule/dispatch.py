"""What is begun next: trials on idle workers, models on their way to nodes, memory cleared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prism.evaluate.schedule.actions import Action, ReleaseCheckpoint, StartInference
from prism.evaluate.schedule.cluster import Cluster, WorkerState
from prism.evaluate.schedule.cutting import CuttingConfig, cut_trial
from prism.evaluate.schedule.ledger import Ledger, Retry
from prism.evaluate.schedule.planner import Planner
from prism.evaluate.schedule.transfers import TransferPolicy, choose_transfers
from prism.evaluate.schedule.trials import Trial


@dataclass(slots=True, kw_only=True)
class Dispatcher:
    """Turns the plan into actions, as far as workers are idle and models are loaded."""

    ledger: Ledger
    cluster: Cluster
    planner: Planner
    cutting: CuttingConfig
    transfers: TransferPolicy
    num_trials: int = 0

    def start_retries(self, now_s: float) -> Iterator[Action]:
        """Parts that failed, each by itself."""
        for retry in list(self.ledger.retries):
            pool = self.ledger.pool(retry.part)
            ready = [
                state
                for state in self._able(retry)
                if state.running is None and self.cluster.is_near(state, pool.key[0])
            ]
            if not ready:
                continue
            self.ledger.retries.remove(retry)
            pool.retrying.discard(retry.part)
            pool.running.add(retry.part)
            prior = pool.prior
            trial = Trial(
                id=self._next_id(),
                checkpoint=retry.part.checkpoint,
                parts=(retry.part,),
                attempt=retry.attempt,
                shrink=pool.shrink,
                expected_s=prior.start_s + prior.setup_s + retry.part.samples * prior.infer_s,
            )
            self.cluster.begin(ready[0], trial, now_s)
            yield StartInference(trial=trial, worker=ready[0].worker.id)

    def start_trials(self, now_s: float) -> Iterator[Action]:
        """The next trial of every idle worker whose model is there."""
        for state in list(self.cluster.idle.values()):
            trial = None
            while trial is None:
                self.planner.fill_queue(state, now_s)
                if state.group is None or not state.queue or not self.cluster.is_near(state, state.group):
                    break
                pools = self.ledger.pools[state.group]
                outlook = self.planner.look_ahead(state.group, now_s)
                trial = cut_trial(state, pools, self._next_id(), self.cutting, outlook)
            if trial is not None:
                self.cluster.begin(state, trial, now_s)
                yield StartInference(trial=trial, worker=state.worker.id)

    def start_loads(self, now_s: float) -> Iterator[Action]:
        """Bring models to the nodes whose workers wait for them, clear those that no worker needs."""
        if not self.planner.moved:
            return
        self.planner.moved = False
        states = [*self.cluster.idle.values(), *self.cluster.trials.values()]  # those that wait come first
        wants = [(state.worker.node, state.group) for state in states if state.group is not None and state.queue]
        wants = list(dict.fromkeys([*self._retry_wants(), *wants]))
        yield from self.release(frozenset(wants))
        memories = self.cluster.memories
        sizes = {name: checkpoint.bytes for name, checkpoint in self.ledger.checkpoints.items()}
        for load in choose_transfers(wants, memories, sizes, self.transfers):
            memory = memories[load.node]
            memory.loading[load.checkpoint] = load.source
            memory.began_s[load.checkpoint] = now_s
            yield load

    def _retry_wants(self) -> Iterator[tuple[str, str]]:
        """Where a checkpoint has to be loaded because no worker that may retry a part of it has it."""
        for retry in self.ledger.retries:
            name = retry.part.checkpoint
            able = self._able(retry)
            if able and not any(self.cluster.is_near(state, name) for state in able):
                yield min(able, key=lambda state: state.running is not None).worker.node, name

    def _able(self, retry: Retry) -> list[WorkerState]:
        """Workers that may retry a part: not the one it failed on, if there is another."""
        checkpoint = self.ledger.checkpoints[retry.part.checkpoint]
        able = [state for state in self.cluster.usable if self.planner.can_run(state, checkpoint)]
        return [state for state in able if state.worker.id != retry.avoid] or able

    def release(self, wants: frozenset[tuple[str, str]] = frozenset()) -> Iterator[Action]:
        """Clear what no worker uses and no waiting sample needs, or what stands in the way of what is wanted."""
        retried = {retry.part.checkpoint for retry in self.ledger.retries}
        for node, memory in self.cluster.memories.items():
            used = {state.running.trial.checkpoint for state in self.cluster.on_node(node) if state.running is not None}
            wanted = {checkpoint for where, checkpoint in wants if where == node}
            for checkpoint in sorted(set(memory.loaded) - used - wanted - retried):
                crowded = any(name not in memory.loaded for name in wanted) and memory.node.memory_bytes > 0
                if crowded or not self.ledger.has_waiting(checkpoint):
                    del memory.loaded[checkpoint]
                    yield ReleaseCheckpoint(node=node, checkpoint=checkpoint)

    def _next_id(self) -> str:
        self.num_trials += 1
        return f"t{self.num_trials}"
