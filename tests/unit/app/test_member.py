"""What a gateway counts of one engine."""

from app.member import Member
from tests.unit.app.dispatch_bench import dispatch_bench
from tests.unit.app.fakes import FakeEngine


async def test_a_job_that_is_sent_once_more_before_the_load_shows_it_counts_once() -> None:
    async with dispatch_bench() as bench:
        member, job = Member(FakeEngine()), bench.job()
        job.num_open_samples = job.num_samples
        member.begin(job)
        member.count_unseen(job, 300)
        member.count_unseen(job, 200)
        assert (member.num_unseen_samples, member.num_unseen_tokens) == (1, 200)
        member.check_integrity()
