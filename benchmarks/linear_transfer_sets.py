"""Batched against looped transfer sets, at the sizes of Figures 3 and 5.

Every way of doing a job runs in a process of its own, on the same transfer sets. Printed, as JSON:
seconds and added peak memory of each way, the ratio of seconds to the batched way, and the largest
difference of the results, so that nobody compares different work. (The perturbed student's noise
depends on the way it is drawn; there only the means can agree.)

    python benchmarks/linear_transfer_sets.py [--sets 1000] [--threads 1] [--output FILE]

Jobs and ways:
    figure 3: n = 20, d = 1000; angle and exact risk of the distilled student
        batched, loop (the same functions, set by set), textbook (normal equations, 2,000 held-out
        inputs for the risk, set by set)
    figure 5: n = 5, d = 100; angles of the distilled, the perturbed and the hard-target student
        batched, loop, textbook (normal equations; scikit-learn's SVC for the hard targets)
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib.linear import (
    PolynomialAngleTask,
    angle,
    expected_risk,
    hard_target_limit,
    perturbed_student,
    student_limit,
    transfer_risk,
)

CHUNK = 100  # transfer sets of Figure 3 in memory at once: 16 MB
WAYS = ("batched", "loop", "textbook")


def figure_3(way: str, sets: int) -> torch.Tensor:
    """Exact risks (measured ones for the textbook way) of the distilled student: (sets,)."""
    task, generator = PolynomialAngleTask(1000, 1.0), torch.Generator().manual_seed(0)
    held_out = task.sample(2000, torch.Generator().manual_seed(1)) if way == "textbook" else None
    risks = []
    for start in range(0, sets, CHUNK):
        inputs = task.sample((min(CHUNK, sets - start), 20), generator)
        for part in [inputs] if way == "batched" else inputs:
            if way == "textbook":
                student = normal_equations(part, task.teacher)
                risks.append(transfer_risk(student, task.teacher, held_out))
            else:
                student = student_limit(part, task.teacher)
                risks.append(expected_risk(angle(student, task.teacher, signed=True), task))
    return torch.cat([risk.reshape(-1) for risk in risks])


def figure_5(way: str, sets: int) -> torch.Tensor:
    """Angles of three learners to the teacher: (sets, 3)."""
    task = PolynomialAngleTask(100, 1.0)
    inputs = task.sample((sets, 5), torch.Generator().manual_seed(0))
    noise = torch.Generator().manual_seed(1)
    angles = []
    for part in [inputs] if way == "batched" else inputs:
        if way == "textbook":
            learners = textbook_learners(part, task.teacher, noise)
        else:
            learners = (
                student_limit(part, task.teacher),
                perturbed_student(part, task.teacher, 1.0, noise),
                hard_target_limit(part, task.teacher),
            )
        angles.append(torch.stack([angle(w, task.teacher) for w in learners], -1))
    return torch.cat([part.reshape(-1, 3) for part in angles])


def normal_equations(inputs: torch.Tensor, teacher: torch.Tensor) -> torch.Tensor:
    """The projection as the paper writes it."""
    return inputs.mT @ torch.linalg.solve(inputs @ inputs.mT, inputs @ teacher)


def textbook_learners(inputs, teacher, noise) -> tuple[torch.Tensor, ...]:
    """The three learners with what a first script would use."""
    from sklearn.svm import SVC

    limit = normal_equations(inputs, teacher)
    q = torch.randn(len(teacher), generator=noise, dtype=torch.float64)
    q = q - normal_equations(inputs, q)
    labels = torch.where(inputs @ teacher >= 0, 1, -1)
    machine = SVC(C=1e10, kernel="linear", tol=1e-8)
    machine.fit(torch.cat([inputs, -inputs]).numpy(), torch.cat([labels, -labels]).numpy())
    hard = torch.from_numpy(machine.coef_[0].copy())
    return limit, limit + limit.norm() / q.norm() * q, hard


def measure(job: str, way: str, sets: int, threads: int) -> dict:
    """Run one way of one job here; return seconds, added peak memory in MiB and the results."""
    torch.set_num_threads(threads)
    run = {"figure 3": figure_3, "figure 5": figure_5}[job]
    run(way, 2)  # imports, first calls into LAPACK
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    results = run(way, sets)
    seconds = time.perf_counter() - start
    added = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": seconds, "added_mib": added / 1024, "results": results.tolist()}


def compare(job: str, sets: int, threads: int) -> dict:
    """Run every way of a job in its own process and relate it to the batched one."""
    report, reference = {}, None
    for way in WAYS:
        command = [sys.executable, __file__, "--job", job, "--way", way]
        command += ["--sets", str(sets), "--threads", str(threads)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        row = json.loads(done.stdout)
        results = torch.tensor(row.pop("results"), dtype=torch.float64)
        reference = (row, results) if reference is None else reference
        row["seconds_ratio"] = row["seconds"] / reference[0]["seconds"]
        row["largest_difference"] = (results - reference[1]).abs().amax(0).tolist()
        row["mean"] = results.mean(0).tolist()
        report[way] = row
    return report


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", type=int, default=1000, help="transfer sets")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--output", type=Path, help="also write the JSON here")
    parser.add_argument("--job", choices=("figure 3", "figure 5"), help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(measure(options.job, options.way, options.sets, options.threads)))
        return
    jobs = {job: compare(job, options.sets, options.threads) for job in ("figure 3", "figure 5")}
    report = json.dumps({"sets": options.sets, "threads": options.threads, **jobs}, indent=2)
    print(report)
    if options.output:
        options.output.write_text(report + "\n")


if __name__ == "__main__":
    main()
