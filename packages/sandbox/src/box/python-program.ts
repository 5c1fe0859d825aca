/** Maximum number of characters that are kept of a result and of an error. */
const MAX_TEXT = 128 * 1024;
/** Maximum number of characters of all images of a cell together, in base64. */
const MAX_IMAGES = 4 * 1024 * 1024;

/**
 * Python program that runs cells in one process: with IPython's interpreter where it is installed, and with `exec` otherwise. It reads
 * `<nonce> <length>` and then the code from file descriptor 3. It answers on the same descriptor with the outcome as JSON, as the protocol of
 * an interpreter requires. It moves its descriptors to other numbers, so that neither cells nor their child processes use them by accident.
 * Needs Python 3.6.
 */
export const PYTHON_PROGRAM = String.raw`
import sys

# The first folder of the path is the working directory, whose files must not replace the modules of this program.
FOLDERS = sys.path[:1] if sys.path[:1] == [""] else []
sys.path[:] = sys.path[len(FOLDERS):]

import ast, base64, builtins, fcntl, json, linecache, os, signal, traceback, types

MAX_TEXT = ${MAX_TEXT}
MAX_IMAGES = ${MAX_IMAGES}
PROCESS = os.getpid()

def moved(number):
    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 64)

control, stdout, stderr = moved(3), moved(1), moved(2)
os.close(3)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
requests = os.fdopen(control, "rb", closefd=False)
for stream in (sys.stdout, sys.stderr):
    if hasattr(stream, "reconfigure"):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


class Outcome:
    def __init__(self):
        self.result = self.error = None
        self.images = []
        self.omitted = 0

    def add_image(self, data):
        if isinstance(data, bytes):
            data = base64.b64encode(data).decode("ascii")
        data = "".join(data.split())
        if sum(map(len, self.images)) + len(data) > MAX_IMAGES:
            self.omitted += 1
        else:
            self.images.append(data)

    def json(self):
        result, error = self.result, self.error
        if result is not None and len(result) > MAX_TEXT:
            self.omitted += len(result) - MAX_TEXT
            result = result[:MAX_TEXT]
        if error is not None and len(error) > MAX_TEXT:
            self.omitted += len(error) - MAX_TEXT
            error = error[-MAX_TEXT:]
        value = {"result": result, "error": error, "images": self.images, "omitted": self.omitted}
        return json.dumps(value).encode("ascii")


outcome = Outcome()


class PlainInterpreter:
    def __init__(self):
        module = types.ModuleType("__main__")
        module.__builtins__ = builtins
        sys.modules["__main__"] = module
        self.names = module.__dict__
        self.count = 0

    def run(self, code):
        self.count += 1
        name = "<cell %d>" % self.count
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            tree = ast.parse(code, name)
            last = None
            if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
                last = ast.Expression(tree.body.pop().value)
            exec(compile(tree, name, "exec"), self.names)
            if last is not None:
                value = eval(compile(last, name, "eval"), self.names)
                if value is not None:
                    self.names["_"] = value
                    outcome.result = repr(value)
        except BaseException as error:
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
                trace = trace.tb_next
            outcome.error = "".join(traceback.format_exception(type(error), error, trace))


class IPythonInterpreter:
    def __init__(self):
        from IPython.core.displayhook import DisplayHook
        from IPython.core.displaypub import DisplayPublisher
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        class Hook(DisplayHook):
            def write_output_prompt(self):
                pass

            def write_format_data(self, format_dict, md_dict=None):
                outcome.result = format_dict.get("text/plain")
                if "image/png" in format_dict:
                    outcome.add_image(format_dict["image/png"])

            def finish_displayhook(self):
                pass

        class Publisher(DisplayPublisher):
            def publish(self, data, *args, **more):
                if "image/png" in data:
                    outcome.add_image(data["image/png"])
                elif "text/plain" in data:
                    print(data["text/plain"])

        class Shell(InteractiveShell):
            displayhook_class = Hook
            display_pub_class = Publisher

            def _showtraceback(self, etype, evalue, stb):
                outcome.error = self.InteractiveTB.stb2text(stb)

            def enable_gui(self, gui=None):
                pass

        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        config.InteractiveShell.banner1 = ""
        config.InteractiveShell.autoindent = False
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        self.shell = Shell.instance(config=config)

    def run(self, code):
        try:
            self.shell.run_cell(code, store_history=True)
        except BaseException:
            outcome.error = traceback.format_exc()


def interpreter():
    try:
        return IPythonInterpreter()
    except Exception:
        return PlainInterpreter()


def write(number, data):
    view = memoryview(data)
    while view:
        view = view[os.write(number, view):]


def ignore(number, frame):
    pass


def run_cell(cells, code, start):
    # A cell can have closed or replaced the streams, without which IPython cannot run.
    sys.stdout = sys.stdout or sys.__stdout__
    sys.stderr = sys.stderr or sys.__stderr__
    try:
        # Only a running cell is interrupted.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        write(control, start)
        cells.run(code)
    except KeyboardInterrupt:
        outcome.error = outcome.error or "KeyboardInterrupt"
    finally:
        signal.signal(signal.SIGINT, ignore)


def flush():
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:
            stream.flush()
        except Exception:
            pass


def serve():
    global outcome
    signal.signal(signal.SIGINT, ignore)
    cells = None
    while True:
        line = requests.readline()
        if not line:
            return
        nonce, length = line.split()
        code = requests.read(int(length)).decode("utf-8", "replace")
        outcome = Outcome()
        start = b"A " + nonce + b"\n"
        if cells is None:
            write(control, start)
            cells = interpreter()
            sys.path[:0] = FOLDERS
        else:
            run_cell(cells, code, start)
        if os.getpid() != PROCESS:
            os._exit(0)
        flush()
        for output in (stdout, stderr):
            write(output, b"\x1e" + nonce)
        detail = outcome.json()
        failed = 1 if outcome.error is not None else 0
        write(control, b"E %s %d %d\n" % (nonce, failed, len(detail)) + detail)


serve()
`;
