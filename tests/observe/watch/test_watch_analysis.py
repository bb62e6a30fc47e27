"""A look in another process is the look that one would take here, and leaves nothing behind."""

from __future__ import annotations

from pathlib import Path

from made_jobs import MadeJob, write_job

from prism.observe.watch.analysis import InlineAnalyst, ProcessAnalyst


def test_a_look_in_another_process_sees_the_same_and_leaves_no_file() -> None:
    flows, topology = write_job(MadeJob(dp=4, pp=1, tp=1, gpus_per_host=1, steps=12))
    until = int(flows["end_ns"].to_numpy().max())
    here = InlineAnalyst().submit(flows, topology, until).result()
    analyst = ProcessAnalyst()
    folder = Path(analyst._folder.name)
    there = analyst.submit(flows, topology, until).result(timeout=600)
    assert (there.num_flows, there.jobs, there.findings) == (here.num_flows, here.jobs, here.findings)
    assert list(folder.iterdir()) == []
    analyst.close()
    assert not folder.exists()


def test_a_look_that_finds_no_room_fails_alone() -> None:
    flows, topology = write_job(MadeJob(dp=4, pp=1, tp=1, gpus_per_host=1, steps=12))
    analyst = ProcessAnalyst()
    analyst._folder.cleanup()
    assert analyst.submit(flows, topology, 0).exception() is not None
    analyst.close()
