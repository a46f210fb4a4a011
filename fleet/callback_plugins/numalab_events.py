"""Ansible's results as lines of JSON for the command that started the playbook.

Each is {"kind", "host", "step", "task", "rc", "stdout", "stderr", "msg"}. Kind is start, ok,
failed, unreachable or retry; step is the task's variable numalab_step, null for most; task is its
name for a reader. They go to the descriptor that NUMALAB_EVENTS_FD names.
"""

import json
import os
import signal

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: numalab_events
type: stdout
short_description: results as lines of JSON
description: Results as lines of JSON on the descriptor that NUMALAB_EVENTS_FD names.
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "numalab_events"

    def _put(self, kind, host, task, result=None):
        result = result or {}
        event = {"kind": kind, "host": host.get_name(), "task": task.get_name()}
        event["step"] = (task.vars or {}).get("numalab_step")
        event.update({key: result.get(key) for key in ("rc", "stdout", "stderr", "msg")})
        line = memoryview((json.dumps(event, default=str) + "\n").encode())
        descriptor = int(os.environ["NUMALAB_EVENTS_FD"])
        try:
            while line:
                line = line[os.write(descriptor, line) :]
        except BrokenPipeError:
            # The command is gone: nobody may fetch beside its successor. The hosts go on.
            if os.getpgrp() == os.getpid():
                os.killpg(0, signal.SIGKILL)
            raise

    def _result(self, kind, result):
        # ansible-core 2.19 introduced the names without the underscore and will drop the older.
        if hasattr(result, "result"):
            self._put(kind, result.host, result.task, result.result)
        else:
            self._put(kind, result._host, result._task, result._result)

    def v2_runner_on_start(self, host, task):
        self._put("start", host, task)

    def v2_runner_on_ok(self, result):
        self._result("ok", result)

    def v2_runner_on_failed(self, result, ignore_errors=False):
        if not ignore_errors:
            self._result("failed", result)

    def v2_runner_on_unreachable(self, result):
        self._result("unreachable", result)

    def v2_runner_retry(self, result):
        self._result("retry", result)
