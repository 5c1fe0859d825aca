import { afterAll, afterEach, beforeAll, describe, expect, it } from 'vitest';
import { describeIf } from '../../../../../../test/skip.ts';
import { freePort } from '../../../../../../verify/services/ports.ts';
import { chromiumMissing } from '../../../../../../verify/services/tools.ts';
import { computerToolset } from '../../../../src/tools/built-in/computer.ts';
import { checkArguments, declarationOf } from '../../../../src/tools/checked-arguments.ts';
import type { AnyTool } from '../../../../src/tools/tool.ts';
import type { ToolsetContext } from '../../../../src/tools/toolset.ts';
import { TestBox } from '../../../tools/open-box.ts';

const noChromium = chromiumMissing();
const FORM =
  'data:text/html,<title>Form</title><input aria-label=Name style="position:absolute;left:0;top:0;width:200px;height:40px">';

describe('the tool computer', () => {
  it('needs a sandbox', async () => {
    const context = { box: null } as ToolsetContext;
    const open = computerToolset.open(computerToolset.config.parse({}), context, new AbortController().signal);
    await expect(open).rejects.toMatchObject({
      code: 'unsupported',
      message: expect.stringContaining('runtime.backend'),
    });
  });
});

describeIf(noChromium, 'the tool computer in a sandbox', () => {
  let sandbox: TestBox;
  beforeAll(async () => {
    sandbox = await TestBox.open();
  });
  afterAll(() => sandbox.close());
  // Several browsers have more threads than a sandbox may have processes, so each test closes its browser.
  afterEach(() => sandbox.closeToolsets());

  const act = (call: (name: string, args: unknown) => Promise<unknown>) => (args: object) => call('computer', args);

  it('checks its arguments, and keeps coordinates inside of the screen', async () => {
    const { tools } = await sandbox.use(computerToolset, { observation: 'both', width: 640, height: 480 });
    const [tool] = tools as readonly [AnyTool];
    const problem = (args: object): unknown => checkArguments(tool, args);
    expect(problem({ action: 'click', x: 639, y: 479 })).toEqual({
      args: { action: 'click', place: { x: 639, y: 479 }, count: 1 },
    });
    expect(problem({ action: 'double_click', element: 3 })).toEqual({
      args: { action: 'click', place: { element: 3 }, count: 2 },
    });
    expect(problem({ action: 'scroll', direction: 'up', amount: 2 })).toEqual({
      args: { action: 'scroll', place: null, dx: 0, dy: -200 },
    });
    for (const [args, message] of [
      [{ action: 'click', x: 640, y: 0 }, /^x: /],
      [{ action: 'click', x: 1 }, /^click needs element, or x and y$/],
      [{ action: 'click', x: 0.5, y: 0 }, /^x: /],
      [{ action: 'type' }, /^type needs text$/],
      [{ action: 'goto' }, /^goto needs url$/],
      [{ action: 'wait', seconds: 1_000 }, /^seconds: /],
      [{ action: 'fly' }, /^action: /],
      [{ action: 'screenshot', more: 1 }, /more/],
    ] as const) {
      expect(problem(args)).toEqual({ problem: expect.stringMatching(message) });
    }
  });

  it('declares only the places that the agent sees', async () => {
    for (const [observation, places] of [
      ['image', ['x', 'y']],
      ['text', ['element']],
    ] as const) {
      const { tools } = await sandbox.use(computerToolset, { observation });
      const [tool] = tools as readonly [AnyTool];
      const properties = Object.keys((declarationOf(tool).function.parameters?.properties ?? {}) as object);
      expect(properties.filter((name) => ['x', 'y', 'element'].includes(name))).toEqual(places);
    }
  });

  it('shows pages as images, as text, or both', async () => {
    const image = { type: 'image_url', image_url: { url: expect.stringMatching(/^data:image\/png;base64,iVBOR/) } };
    const text = { type: 'text', text: expect.stringContaining('Form: data:') };
    const site = { url: FORM };
    const images = await sandbox.use(computerToolset, { site, width: 320, height: 240 });
    await act(images.call)({ action: 'type', x: 20, y: 20, text: 'Ann' });
    expect(await act(images.call)({ action: 'screenshot' })).toEqual({ isError: false, content: [text, image] });
    const both = await sandbox.use(computerToolset, { observation: 'both', site });
    expect(await act(both.call)({ action: 'type', element: 1, text: 'Ann' })).toEqual({
      isError: false,
      content: [{ type: 'text', text: expect.stringContaining('[1] textbox "Name" value "Ann" focused') }, image],
    });
  });

  it('refuses files unless they are allowed', async () => {
    const { call } = await sandbox.use(computerToolset, { observation: 'text' });
    const refused = await act(call)({ action: 'goto', url: 'file:///etc/passwd' });
    expect(refused).toMatchObject({ isError: true, content: expect.stringContaining('file: cannot be opened') });
  });

  it('continues with a new browser when the process that operates it was killed', async () => {
    const { call } = await sandbox.use(computerToolset, { observation: 'text', site: { url: FORM } });
    const shell = sandbox.box.shell();
    const kill = `kill -9 $(pgrep -f "node.*browser.js" | while read p; do grep -qz "^HOME=$HOME$" /proc/$p/environ && echo $p; done)`;
    await shell.run(kill, { timeoutMs: 10_000 }, new AbortController().signal);
    await shell.close();
    // The end of the process is noticed before the action or during it.
    const after = await act(call)({ action: 'screenshot' }).catch(({ message }: Error) => ({
      ...{ isError: true, content: message },
    }));
    expect(after).toEqual({ isError: true, content: expect.stringMatching(/the browser (had|has) ended/) });
    const form = await act(call)({ action: 'goto', url: FORM });
    expect(form).toEqual({ isError: false, content: expect.stringContaining('[1] textbox "Name"') });
  });

  it.each([
    [
      { program: 'no-such-browser' },
      /the tool computer cannot start: the sandbox has no program no-such-browser\. .*apt-get install chromium/,
    ],
    [{ program: 'false' }, /the tool computer cannot start: .*the browser did not start/],
    [{ site: { command: 'echo no database; exit 4', url: 'http://127.0.0.1:9/' } }, /the site ended: no database/],
    [{ site: { url: 'http://127.0.0.1:9/' } }, /the site cannot be opened: .*ERR_/],
  ])('ends the session where it cannot start: %j', async (config, message) => {
    await expect(sandbox.use(computerToolset, config)).rejects.toMatchObject({
      code: 'setup_failed',
      message: expect.stringMatching(message),
    });
  });

  it('waits until a site answers', async () => {
    const port = await freePort();
    const url = `http://127.0.0.1:${port}/`;
    const command = `sleep 0.5; python3 -m http.server ${port} --bind 127.0.0.1`;
    const { call } = await sandbox.use(computerToolset, { observation: 'text', site: { command, url } });
    expect(await act(call)({ action: 'screenshot' })).toMatchObject({
      isError: false,
      content: expect.stringContaining('Directory listing for /'),
    });
  });
});
