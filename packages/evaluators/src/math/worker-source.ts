/**
 * Program of the worker process that compares mathematical answers with the Python package math-verify. Its arguments are the limits of one
 * comparison: seconds of processor time, and MiB of memory. Processor time is limited because an honest answer must not lose its reward on a
 * busy machine. A limit of twelve times as long in real time ends a comparison that uses no processor time.
 *
 * It prints one JSON line with the package's version when it is ready. Then it reads one JSON line per comparison, `{id, expected, answer,
 * extract}`, and prints `{id, verdict}` for each, in any order. `extract` is true when the answer is a text that contains an expression, and
 * false when it is the expression itself.
 *
 * Each comparison runs in a forked child with limits, because the answer may be hostile: sympy can compute or allocate without end. The child
 * writes one byte when it has read the expected answers and compared them with a harmless answer. A child that is killed before this byte has
 * failed because of the task; a child that is killed after it has failed because of the answer. All children end when the input of the worker
 * ends.
 */
export const WORKER_SOURCE = `
import importlib.metadata, json, logging, os, re, resource, select, signal, sys
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

logging.disable(logging.CRITICAL)

def read(text, config):
    return parse(text, extraction_config=config, fallback_mode="no_fallback", parsing_timeout=None)

def read_expression(text):
    text = re.sub(r"(?<!\\\\)\\$", "", text)
    found = read("$" + text + "$", [LatexExtractionConfig()])
    if found or not set(text) <= set("0123456789 .+-*/^()"):
        return found
    return read(text, [ExprExtractionConfig()])

def read_text(text):
    return read(text, [LatexExtractionConfig(), ExprExtractionConfig()])

def compare(request, pipe):
    golds = [read_expression(one) for one in request["expected"]]
    if not all(golds):
        return "bad_expected"
    for gold in golds:
        verify(gold, HARMLESS, timeout_seconds=None)
    os.write(pipe, b".")
    answer = request["answer"]
    target = read_text(answer) if request["extract"] else read_expression(answer)
    if not target:
        return "unreadable"
    return "equal" if any(verify(gold, target, timeout_seconds=None) for gold in golds) else "different"

def run_child(request, pipe):
    os.nice(10)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (int(SECONDS) + 1, int(SECONDS) + 1))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, WALL_FACTOR * SECONDS)
    try:
        verdict = compare(request, pipe)
    except BaseException:
        os._exit(1)
    os.write(pipe, verdict.encode())
    os._exit(0)

def start(request):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.close(0)
        os.close(1)
        run_child(request, writing)
    os.close(writing)
    children[reading] = (pid, request["id"], bytearray())

def finish(pipe):
    pid, number, data = children.pop(pipe)
    os.close(pipe)
    _, status = os.waitpid(pid, 0)
    verdict = data.decode("ascii", "replace")
    if not (os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0):
        late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM, signal.SIGXCPU)
        verdict = "bad_expected" if not verdict else "timeout" if late else "failed"
    report({"id": number, "verdict": verdict.removeprefix(".")})

def report(message):
    os.write(1, (json.dumps(message) + "\\n").encode())

WALL_FACTOR = 12
SECONDS = float(sys.argv[1])
MEMORY = int(sys.argv[2]) * 2**20
children = {}
pending = b""
HARMLESS = read_expression("7")
report({"version": importlib.metadata.version("math-verify")})
while True:
    for ready in select.select([0, *children], [], [])[0]:
        chunk = os.read(ready, 65536)
        if ready in children:
            children[ready][2].extend(chunk)
            if not chunk:
                finish(ready)
        elif chunk:
            *lines, pending = (pending + chunk).split(b"\\n")
            for line in lines:
                start(json.loads(line))
        else:
            for pid, _, _ in children.values():
                os.kill(pid, signal.SIGKILL)
            sys.exit(0)
`;
