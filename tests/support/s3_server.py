#!/usr/bin/env python3
# An S3 service on the loopback interface: moto's (PyPI), which checks signatures with botocore.
#   s3_server.py FOLDER ENVIRONMENT
# ENVIRONMENT: a folder that keeps moto and its dependencies between tests; made where it is missing. Exits with 77 where it cannot be
# made. Writes FOLDER/settings.json (endpoint, key, secret), prints "ready", and serves the bucket "bucket" until its parent
# ends, at most five minutes.
# FOLDER/faults.json: a list of {"match": a pattern of "METHOD PATH?QUERY", and one of
#   "status": N, "count": M   the first M requests that match are answered with N
#   "stall": true             a request that matches is never answered; prints "stalled"
#   "cut": true               a GET that matches sends half of its bytes
# FOLDER/requests.txt: a line "METHOD PATH?QUERY STATUS BYTES" for each request.
import ctypes
import json
import os
import pathlib
import re
import signal
import sys
import threading

import packages

PACKAGES = ["moto[s3]==5.2.5", "flask==3.1.3", "flask-cors==6.0.5"]


# Sends half of a body and closes the connection.
def cut(body):
    yield body[: len(body) // 2]
    raise ConnectionError("cut")


# Answers requests as faults.json says, and writes them down.
class Faults:
    def __init__(self, app, folder):
        self.app, self.folder, self.counts, self.lock = app, folder, {}, threading.Lock()

    def fault(self, line):
        file = self.folder / "faults.json"
        for rule in json.loads(file.read_text()) if file.exists() else []:
            if not re.search(rule["match"], line):
                continue
            with self.lock:
                key = json.dumps(rule)
                self.counts[key] = self.counts.get(key, 0) + 1
                if self.counts[key] <= rule.get("count", 1 << 30):
                    return rule
        return {}

    def __call__(self, environ, start_response):
        query = environ.get("QUERY_STRING", "")
        line = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}" + (f"?{query}" if query else "")
        rule = self.fault(line)
        if rule.get("stall"):
            print("stalled", flush=True)
            threading.Event().wait()
        if "status" in rule:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            self.write(line, rule["status"], 0)
            start_response(f"{rule['status']} Fault", [("Content-Type", "application/xml")])
            return [b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"]
        seen = {}

        def start(status, headers, *more):
            seen["status"] = status.split()[0]
            return start_response(status, headers, *more)

        body = b"".join(self.app(environ, start))
        self.write(line, seen.get("status"), len(body))
        return cut(body) if rule.get("cut") else [body]

    def write(self, line, status, size):
        with self.lock, open(self.folder / "requests.txt", "a") as log:
            log.write(f"{line} {status} {size}\n")


def main():
    signal.alarm(300)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    folder, environment = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    packages.install(environment, PACKAGES)
    os.environ["S3_UPLOAD_PART_MIN_SIZE"] = "65536"
    os.environ["MOTO_S3_DEFAULT_KEY_BUFFER_SIZE"] = str(1 << 28)
    import logging
    import moto.core.responses
    from moto import settings
    from moto.iam.models import iam_backends
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from moto.s3.models import s3_backends
    from werkzeug.serving import WSGIRequestHandler, make_server

    account = "123456789012"
    iam = iam_backends[account]["aws"]
    iam.create_user("aws", "tester", "/")
    key = iam.create_access_key("tester")
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy("tester", "all", json.dumps(policy))
    s3_backends[account]["aws"].create_bucket("bucket", "us-east-1")
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    moto.core.responses.ActionAuthenticatorMixin.request_count = 1

    class Handler(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *args):
            pass

    logging.disable(logging.CRITICAL)
    app = Faults(DomainDispatcherApplication(create_backend_app), folder)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (folder / "settings.json").write_text(json.dumps({
        "endpoint": f"http://127.0.0.1:{server.server_port}", "key": key.access_key_id, "secret": key.secret_access_key}))
    print("ready", flush=True)
    signal.pause()


main()
