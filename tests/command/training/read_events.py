# Prints the scalars of a run's event files as JSON, {tag: [[step, value], ...]}, by TensorBoard's own reader. Exits with 77 where its
# package cannot be fetched.
#   read_events.py PACKAGES RUN
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "support"))
import packages  # noqa: E402

packages.install(sys.argv[1], ["tensorboard==2.20.0"])
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # noqa: E402

events = EventAccumulator(sys.argv[2], size_guidance={"scalars": 0, "tensors": 0})
events.Reload()
found = {}
for tag in events.Tags()["scalars"]:
    found[tag] = [[event.step, event.value] for event in events.Scalars(tag)]
print(json.dumps(found))
