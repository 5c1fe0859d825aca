import { afterAll, beforeAll, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { findTool } from '../../../../../../verify/services/tools.ts';
import { ipythonToolset } from '../../../../src/tools/built-in/ipython.ts';
import { TestBox } from '../../../tools/open-box.ts';

const noPython = findTool('python3') === null ? 'python3 is not installed: apt-get install -y python3' : null;
/** A PNG of one pixel. */
const PIXEL = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';

describeIf(noPython, 'ipython', () => {
  let sandbox: TestBox;
  beforeAll(async () => {
    sandbox = await TestBox.open();
  });
  afterAll(() => sandbox.close());

  const opened = async (config: object = {}) => {
    const { tools, call } = await sandbox.use(ipythonToolset, config);
    return { tools, run: (code: string) => call('ipython', { code }) };
  };

  it('keeps its state and returns output, the last value and tracebacks', async () => {
    const { run } = await opened();
    expect(await run('x = 20\nprint("out")\nx + 1')).toEqual({ content: 'out\n21', isError: false });
    const failed = await run('x / 0');
    expect(failed).toMatchObject({ isError: true, content: expect.stringContaining('ZeroDivisionError') });
  });

  it('imports modules before the first cell, and once more after the process has ended', async () => {
    const { tools, run } = await opened({ preload: ['math', 'json as j', 'os.path', 'no_such_module'] });
    expect(tools[0]?.description).toContain('math, json as j, os.path');
    expect((await run('math.sqrt(4), j.dumps(1), os.path.sep')).content).toBe(
      "(2.0, '1', '/')\n[not installed: no_such_module]",
    );
    expect((await run('math.pi > 3')).content).toBe('True');
    const ended = await run('import os; os._exit(3)');
    expect(ended).toMatchObject({ isError: true, content: expect.stringContaining('has ended') });
    expect((await run('math.sqrt(9)')).content).toBe('3.0\n[not installed: no_such_module]');
  });

  it.each(['numpy; import os', 'a b', '1x', ''])('refuses %j as a module', async (module) => {
    await expect(opened({ preload: [module] })).rejects.toThrow(/must be a module/);
  });

  it('interrupts a cell at its time limit', async () => {
    const { run } = await opened({ timeout_seconds: 0.3 });
    const late = await run('while True: pass');
    expect(late).toMatchObject({ isError: true, content: expect.stringContaining('[the time limit passed]') });
    expect((await run('1 + 1')).content).toBe('2');
  });

  it('gives images as parts, or their number only', async () => {
    // Without IPython, a cell has no function that displays images. The cell therefore adds an image to the outcome object of its own run.
    const first = await opened();
    const found = `import gc\nfor o in gc.get_objects():\n    if type(o).__name__ == "Outcome": o.add_image("${PIXEL}")`;
    const shown = await first.run(`${found}\nprint("plot")`);
    expect(shown.content).toEqual([
      { type: 'text', text: 'plot' },
      { type: 'image_url', image_url: { url: `data:image/png;base64,${PIXEL}` } },
    ]);
    const second = await opened({ images: false });
    expect((await second.run(found)).content).toBe('[images that are not shown: 1]');
  });

  it('refuses a call without code', async () => {
    const { call } = await sandbox.use(ipythonToolset);
    await expect(call('ipython', {})).rejects.toThrow(/wrong arguments: code/);
  });

  it('survives hostile cells', async () => {
    const { run } = await opened();
    const closing = await run('import os\nfor fd in range(3, 200):\n    try: os.close(fd)\n    except OSError: pass');
    expect(closing.isError).toBe(true);
    expect((await run('"alive"')).content).toContain('alive');
    const loud = await run('print("x" * 50_000_000)');
    expect(JSON.stringify(loud.content)).toContain('bytes in the middle of the output are left out');
  });
});
