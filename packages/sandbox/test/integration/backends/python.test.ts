import { existsSync } from 'node:fs';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../test/skip.ts';
import { jupyterPython } from '../../../../../verify/services/jupyter.ts';
import { findTool } from '../../../../../verify/services/tools.ts';
import type { Runtime } from '../../../src/api/runtime.ts';
import type { PythonResult, RuntimeTools, ToolProcess } from '../../../src/api/tools.ts';
import { bubblewrapMissing, never, processesMentioning, uniqueSeconds, Workbench } from '../../backends/workbench.ts';

const ipython = jupyterPython();
const noIpython = ipython === null ? 'IPython is not installed: npm run verify -- install' : null;
const noPython = findTool('python3') === null ? 'python3 is not installed: apt-get install -y python3' : null;
const noSystemPython = existsSync('/usr/bin/python3') ? null : 'python3 is not installed: apt-get install -y python3';
const MINUTE = { timeoutMs: 60_000 };
const KILLED_SOON = { timeoutMs: 300 };
/** A PNG image of one pixel, in base64. */
const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';

describeIf(noPython, 'Python without IPython in a local sandbox', () => suite('local', undefined));
describeIf(noIpython, 'Python with IPython in a local sandbox', () => suite('local', ipython ?? undefined));
const missing = (await bubblewrapMissing()) ?? noSystemPython;
describeIf(missing, 'Python in a bubblewrap sandbox', () => suite('bubblewrap', undefined));

function suite(backend: 'local' | 'bubblewrap', program: string | undefined): void {
  let bench: Workbench;
  let runtime: Runtime;
  let tools: RuntimeTools;
  let python: ToolProcess<PythonResult>;
  beforeAll(async () => {
    bench = await Workbench.open();
    runtime = await bench.start(backend, { max_output_mb: 0.01 });
    // A module that cannot be imported simulates that IPython is not installed.
    await runtime.writeFiles([{ path: 'none/IPython.py', content: 'raise ImportError\n' }], never);
    // Modules of the working directory must not replace modules that floe's program imports.
    await runtime.writeFiles([{ path: 'json.py', content: 'raise ImportError("of the working directory")\n' }], never);
    await runtime.writeFiles([{ path: 'own_module.py', content: 'VALUE = 5\n' }], never);
  });
  afterAll(async () => {
    await runtime?.stop();
    await bench?.close();
  });
  beforeEach(async () => {
    tools = await runtime.openTools(never);
    const env: Record<string, string> = program === undefined ? { PYTHONPATH: `${runtime.paths.workdir}/none` } : {};
    python = tools.python({ program, env });
  });
  afterEach(() => tools.close());
  const run = (code: string, options = MINUTE) => python.run(code, options, never);

  it('returns output, errors and the value of the last expression, and keeps names', async () => {
    const first = await run('import os, sys\nx = 20\nprint("out ä")\nprint("err", file=sys.stderr)\nx + 1');
    expect(first).toMatchObject({
      ...{ stdout: 'out ä\n', stderr: 'err\n', result: '21', error: null, images: [], omitted: 0 },
      ...{ droppedBytes: 0, timedOut: false, isFirst: true, processEnd: null },
    });
    expect(await run('x * 2')).toMatchObject({ stdout: '', result: '40', isFirst: false });
    expect(await run('y = x')).toMatchObject({ result: null });
    expect(await run('x;')).toMatchObject({ result: null });
    expect(await run('import own_module\nown_module.VALUE')).toMatchObject({ result: '5' });
  });

  it('returns what child processes and file descriptors write', async () => {
    const code =
      'import os, subprocess\nos.write(1, b"raw\\xff\\n")\nsubprocess.run(["sh", "-c", "echo child; cat"]).returncode';
    expect(await run(code)).toMatchObject({ stdout: 'raw\ufffd\nchild\n', result: '0' });
  });

  it('reports exceptions with their place in the cell, syntax errors and exits', async () => {
    const { error, processEnd } = await run('def f():\n    return 1 / 0\nf()');
    expect(error).toMatch(/return 1 \/ 0[\s\S]*ZeroDivisionError: division by zero/);
    expect(error).not.toContain('\x1b');
    expect(processEnd).toBeNull();
    expect((await run('def f(:')).error).toContain('SyntaxError');
    expect((await run('raise SystemExit(3)')).error).toContain('SystemExit');
    expect((await run('input()')).error).toContain('EOFError');
    expect(await run('1')).toMatchObject({ result: '1', error: null });
  });

  it('limits output, results and errors and counts the rest', async () => {
    const { stdout, droppedBytes } = await run('print("x" * 1_000_000)');
    expect(stdout.length + droppedBytes).toBe(1_000_001);
    expect(stdout.length).toBeLessThanOrEqual(0.01 * 1024 * 1024);
    const long = await run('class Long:\n    def __repr__(self): return "ä" * 300_000\nLong()');
    expect([long.result?.length, long.omitted]).toEqual([131_072, 300_000 - 131_072]);
    const failed = await run('raise ValueError("x" * 300_000)');
    expect(failed.error?.length).toBe(131_072);
    expect(failed.omitted).toBeGreaterThan(100_000);
  });

  it('interrupts a cell and keeps the state', async () => {
    await run('x = "kept"');
    const running = run('import time\nopen("begun", "w").write("x")\ntime.sleep(1000)\nprint("after")');
    while ((await runtime.readFile('begun', 10, never)) === null)
      await new Promise((resolve) => setTimeout(resolve, 10));
    python.interrupt();
    const { error, stdout, timedOut } = await running;
    expect(error).toContain('KeyboardInterrupt');
    expect([stdout, timedOut]).toEqual(['', false]);
    expect((await run('x')).result).toBe("'kept'");
  });

  it.each([
    ['a loop', 'while True: pass'],
    ['a program', 'import subprocess\nsubprocess.run(["sleep", "1000"])'],
  ])('ends %s at the time limit and keeps the state', async (_what, code) => {
    await run('x = "kept"');
    expect(await run(code, KILLED_SOON)).toMatchObject({ timedOut: true, processEnd: null });
    expect((await run('x')).result).toBe("'kept'");
  });

  it('replaces a process that ignores the time limit, and one that ends', async () => {
    const stuck = 'import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass';
    expect(await run(stuck, KILLED_SOON)).toMatchObject({ timedOut: true, processEnd: 'killed', result: null });
    expect(await run('import os\nprint("out", flush=True)\nos._exit(3)')).toMatchObject({
      ...{ stdout: 'out\n', processEnd: 'exited', isFirst: true },
    });
    expect(await run('1')).toMatchObject({ result: '1', isFirst: true });
  });

  it('kills the cell when the signal aborts', async () => {
    const seconds = uniqueSeconds();
    const controller = new AbortController();
    const reason = new Error('enough');
    const code = `import subprocess\nopen("aborting", "w").write("x")\nsubprocess.run(["sleep", "${seconds}"])`;
    const running = python.run(code, MINUTE, controller.signal);
    while ((await runtime.readFile('aborting', 10, never)) === null)
      await new Promise((resolve) => setTimeout(resolve, 10));
    controller.abort(reason);
    await expect(running).rejects.toBe(reason);
    expect(await processesMentioning(seconds)).toEqual([]);
  });

  it('leaves background processes, or ends those of a cell when asked, and all when it is closed', async () => {
    const [kept, ended] = [uniqueSeconds(), uniqueSeconds()];
    await run(`import subprocess\np = subprocess.Popen(["sleep", "${kept}"])`);
    const killing = { ...MINUTE, killsRest: true };
    await run(`q = subprocess.Popen(["setsid", "sleep", "${ended}"])`, killing);
    expect(await processesMentioning(ended)).toEqual([]);
    expect(await processesMentioning(kept)).not.toEqual([]);
    await python.close();
    expect(await processesMentioning(kept)).toEqual([]);
  });

  it('ignores a forked process that returns from its cell', async () => {
    const forked = await run(
      'import os\npid = os.fork()\nif pid: os.waitpid(pid, 0)\nprint("once" if pid else "child")',
    );
    expect(forked).toMatchObject({ processEnd: null, error: null });
    expect(forked.stdout).toContain('once\n');
    expect(await run('2')).toMatchObject({ result: '2', isFirst: false });
  });

  describe('with a hostile cell', () => {
    it.each([
      ['closes its outputs', 'import os\nos.close(1); os.close(2)\n3'],
      ['replaces sys.stdout', 'import sys\nsys.stdout = sys.stderr = None\n3'],
      ['ignores interrupts and changes handlers', 'import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n3'],
    ])('that %s gets the right result, and the process continues', async (_what, code) => {
      expect(await run(code)).toMatchObject({ result: '3', processEnd: null });
      expect(await run('while True: pass', KILLED_SOON)).toMatchObject({ timedOut: true, processEnd: null });
    });

    it.each([
      ['closes all descriptors', 'os.closerange(3, 100)'],
      [
        'reports a wrong end',
        '[os.write(n, b"E " + b"0" * 32 + b" 0 0\\n") for n in range(64, 70) if sock(n)]; time.sleep(1000)',
      ],
      ['reports an endless line', '[os.write(n, b"x" * 1000) for n in range(64, 70) if sock(n)]; time.sleep(1000)'],
    ])('that %s loses its process', async (_what, code) => {
      const names =
        'import os, stat, time\ndef sock(n):\n    try: return stat.S_ISSOCK(os.fstat(n).st_mode) and n == 64\n    except OSError: return False\n';
      expect((await run(names + code)).processEnd).not.toBeNull();
      expect(await run('4')).toMatchObject({ result: '4', isFirst: true });
    });
  });

  if (program === undefined) return;

  it('returns images that are displayed or are the result', async () => {
    const image = `from IPython.display import Image, display\nimport base64\nimage = Image(data=base64.b64decode("${PIXEL}"))`;
    expect((await run(`${image}\ndisplay(image)\nimage`)).images).toEqual([PIXEL, PIXEL]);
    expect(await run('display({"a": 1})')).toMatchObject({ stdout: "{'a': 1}\n", result: null, images: [] });
  });

  it('runs magics and shell commands of IPython', async () => {
    expect((await run('!echo from-shell')).stdout).toContain('from-shell');
    expect((await run('%cd /\nimport os\nos.getcwd()')).result).toBe("'/'");
  });
}
