import { FloeError, sleep, systemClock } from '@floe-rl/core';
import type { Content } from '@floe-rl/core/schema';
import type {
  BrowserAction,
  BrowserPlace,
  BrowserRequest,
  BrowserResult,
  BrowserView,
  ShellResult,
  ToolProcess,
} from '@floe-rl/sandbox';
import { z } from 'zod';
import { requireBox } from '../require-box.ts';
import { type Box, defineTool, ToolError } from '../tool.ts';
import { defineToolset, type ToolsetContext } from '../toolset.ts';

/** Settings of the toolset, which the agent `computer_use` also has. */
export const computerSettings = {
  observation: z
    .enum(['image', 'text', 'both'])
    .default('image')
    .describe('how a page is shown: as a screenshot, as text with numbered elements, or both'),
  width: z.int().min(320).max(1_920).default(1_024).describe('width of the screen in pixels'),
  height: z.int().min(240).max(1_200).default(768).describe('height of the screen in pixels'),
  site: z
    .strictObject({
      command: z
        .string()
        .min(1)
        .nullable()
        .default(null)
        .describe('shell command that serves the site; null: it runs already'),
      url: z.string().min(1).describe('address that is open at the start'),
    })
    .nullable()
    .default(null)
    .describe('a site in the sandbox; null: the browser starts with an empty page'),
  files: z.boolean().default(false).describe('whether `file://` addresses can be opened'),
  network: z
    .boolean()
    .default(false)
    .describe("whether pages of other hosts can be opened, as far as the sandbox's network allows it"),
  page_seconds: z.number().gt(0).max(120).default(15).describe('time in which a page must load and respond'),
  program: z.string().min(1).nullable().default(null).describe('the browser, a path or a name in PATH; null: Chromium'),
};

const configSchema = z.strictObject(computerSettings);
type Config = z.output<typeof configSchema>;

/** Time in milliseconds that a run may take longer than its page: to start the browser, to wait, and to show the page. */
const MARGIN_MS = 75_000;
/** Maximum time in milliseconds until a site answers after its command was started, and the interval of the attempts. */
const SITE_MS = 30_000;
const RETRY_MS = 100;
/** Time limit in milliseconds of the shell commands that start a site and check on it. */
const SHELL_MS = 10_000;
/** Number of pixels that one step of scrolling moves. */
const STEP_PIXELS = 100;
const MAX_WAIT_SECONDS = 10;
const RESTARTED = 'the browser had ended, so a new one was started, with an empty page and without cookies';

/** Chromium in the sandbox. */
export const computerToolset = defineToolset({
  name: 'computer',
  description: 'a browser in the sandbox, operated by mouse and keyboard, with screenshots or pages as text',
  config: configSchema,
  scope: 'session',
  async open(config, { box }: ToolsetContext, signal) {
    const computer = new Computer(config, requireBox('computer', box));
    await computer.start(signal).catch(async (error: unknown) => {
      await computer.close();
      throw error instanceof ToolError ? setupFailed(startProblem(error)) : error;
    });
    const tool = defineTool({
      name: 'computer',
      description: descriptionOf(config),
      effect: 'environment',
      timeoutMs: config.page_seconds * 2_000 + MARGIN_MS,
      parameters: parametersOf(config),
      run: async (action, _, signal) => {
        const { text, image, failed } = await computer.act(action, signal);
        return { content: contentOf(text, image), isError: failed };
      },
    });
    return { tools: [tool], close: () => computer.close() };
  },
});

/** The browser and the site of one session. */
class Computer {
  private readonly config: Config;
  private readonly browser: ToolProcess<BrowserResult>;
  private readonly shell: ToolProcess<ShellResult>;
  private hasStarted = false;

  constructor(config: Config, box: Box) {
    this.config = config;
    this.browser = box.browser(config.program === null ? {} : { program: config.program });
    this.shell = box.shell();
  }

  /** Starts the site and the browser. Rejects with `setup_failed` or a {@link ToolError} when one of them cannot be started. */
  async start(signal: AbortSignal): Promise<void> {
    const { site } = this.config;
    if (site !== null && site.command !== null) await this.serve(site.command, signal);
    const { failed, text } = await this.act({ action: 'screenshot' }, signal);
    if (failed) throw setupFailed(text);
    if (site !== null) await this.openSite(site.url, site.command !== null, signal);
  }

  /** Does an action and resolves with the page after it. Rejects with a {@link ToolError} when the process of the browser ends. */
  async act(action: BrowserAction, signal: AbortSignal): Promise<BrowserView> {
    const { width, height, network, files, page_seconds: seconds, observation } = this.config;
    const request: BrowserRequest = {
      action,
      screen: { width, height },
      isLocal: !network,
      opensFiles: files,
      views: { image: observation !== 'text', text: observation !== 'image' },
      loadMs: seconds * 1_000,
    };
    const options = { timeoutMs: seconds * 2_000 + MARGIN_MS };
    const { view, stderr, isFirst } = await this.browser.run(JSON.stringify(request), options, signal);
    const isRestarted = isFirst && this.hasStarted;
    this.hasStarted = view !== null;
    if (view !== null && !isRestarted) return view;
    if (view !== null) return { ...view, text: `Error: ${RESTARTED}\n${view.text}`, failed: true };
    const why = stderr.trim().slice(-300);
    throw new ToolError('failed', `the browser has ended; the next action starts a new one. ${why}`.trim());
  }

  async close(): Promise<void> {
    await Promise.all([this.browser.close(), this.shell.close()]);
  }

  private async serve(command: string, signal: AbortSignal): Promise<void> {
    const start = `( ${command}\n) >"$HOME/.floe-site.log" 2>&1 </dev/null & FLOE_SITE=$!`;
    const { exitCode } = await this.shell.run(start, { timeoutMs: SHELL_MS }, signal);
    if (exitCode !== 0) throw setupFailed(`the command of the site ended with ${exitCode}`);
  }

  /** Opens the site when it answers. */
  private async openSite(url: string, isServed: boolean, signal: AbortSignal): Promise<void> {
    const endMs = systemClock.monotonicMs() + SITE_MS;
    for (;;) {
      const { failed, text } = await this.act({ action: 'goto', url }, signal);
      // When the address belongs to another server, the command of the site has ended, because the port is in use.
      const problem = isServed ? await this.siteProblem(signal) : null;
      if (problem !== null) throw setupFailed(`the site ended: ${problem}`);
      if (!failed) return;
      if (!isServed || systemClock.monotonicMs() > endMs) throw setupFailed(`the site cannot be opened: ${text}`);
      await sleep(systemClock, RETRY_MS, signal);
    }
  }

  /** Resolves with the end of the site's output when its command has ended, and with `null` while it runs. */
  private async siteProblem(signal: AbortSignal): Promise<string | null> {
    const check = 'kill -0 "$FLOE_SITE" 2>/dev/null || { tail -c 500 "$HOME/.floe-site.log"; (exit 3); }';
    const { exitCode, stdout } = await this.shell.run(check, { timeoutMs: SHELL_MS }, signal);
    return exitCode === 0 ? null : stdout.trim();
  }
}

function startProblem({ reason, message }: ToolError): string {
  if (reason !== 'unavailable') return message;
  return `${message}. Use an image with Chromium (Debian: apt-get install chromium), or set \`program\` to its path`;
}

function setupFailed(message: string): FloeError {
  return new FloeError('setup_failed', `the tool computer cannot start: ${message}`, { tool: 'computer' });
}

function contentOf(text: string, image: BrowserView['image']): Content {
  if (image === null) return text;
  const url = `data:${image.type};base64,${image.data}`;
  return [
    { type: 'text', text },
    { type: 'image_url', image_url: { url } },
  ];
}

function descriptionOf({ observation, width, height }: Config): string {
  const shown = {
    image: `Each action returns a screenshot of ${width} x ${height} pixels; give places as x and y in it.`,
    text: 'Each action returns the page as text, in which the elements that can be operated have numbers; give places as `element`.',
    both: `Each action returns a screenshot of ${width} x ${height} pixels and the page as text with numbered elements; give places as x and y, or as \`element\`.`,
  };
  const rest = 'To choose from a list, type the name of the option into it. Dialogs are answered by themselves.';
  return `Operates a browser with mouse and keyboard. ${shown[observation]} ${rest}`;
}

const ACTIONS = ['screenshot', 'click', 'double_click', 'type', 'key', 'scroll', 'wait', 'goto'] as const;
const DIRECTIONS = { up: [0, -1], down: [0, 1], left: [-1, 0], right: [1, 0] } as const;

/** Returns the schema of the arguments of a call, which become an action. Coordinates are inside of the screen. */
function parametersOf({ observation, width, height }: Config): z.ZodType<BrowserAction> {
  const point = {
    x: z
      .int()
      .min(0)
      .max(width - 1)
      .optional()
      .describe('pixels from the left'),
    y: z
      .int()
      .min(0)
      .max(height - 1)
      .optional()
      .describe('pixels from the top'),
  };
  const element = { element: z.int().min(1).optional().describe('number of an element in the last text of the page') };
  const schema = z.strictObject({
    action: z.enum(ACTIONS),
    ...(observation === 'text' ? {} : point),
    ...(observation === 'image' ? {} : element),
    text: z.string().max(10_000).optional().describe('for type; a newline presses Enter'),
    key: z.string().min(1).max(40).optional().describe('for key, such as Enter, Tab, PageDown or ctrl+a'),
    direction: z.enum(['up', 'down', 'left', 'right']).optional().describe('for scroll; default: down'),
    amount: z.int().min(1).max(50).optional().describe(`for scroll: steps of ${STEP_PIXELS} pixels; default: 5`),
    seconds: z.number().gt(0).max(MAX_WAIT_SECONDS).optional().describe('for wait; default: 1'),
    url: z.string().min(1).max(2_000).optional().describe('for goto'),
  });
  const places = { image: 'x and y', text: 'element', both: 'element, or x and y' }[observation];
  return schema.transform((args, context) => {
    const action = actionOf(args);
    if (typeof action !== 'string') return action;
    context.addIssue({ code: 'custom', message: `${args.action} needs ${action === 'place' ? places : action}` });
    return z.NEVER;
  });
}

type Arguments = {
  readonly action: (typeof ACTIONS)[number];
  readonly x?: unknown;
  readonly y?: unknown;
  readonly element?: unknown;
  readonly text?: string | undefined;
  readonly key?: string | undefined;
  readonly direction?: keyof typeof DIRECTIONS | undefined;
  readonly amount?: number | undefined;
  readonly seconds?: number | undefined;
  readonly url?: string | undefined;
};

/** Returns the action of a call, or the name of the argument that it lacks. */
function actionOf(args: Arguments): BrowserAction | 'place' | 'text' | 'key' | 'url' {
  const { action, text, key, url, direction = 'down', amount = 5, seconds = 1 } = args;
  const place = placeOf(args);
  switch (action) {
    case 'screenshot':
      return { action };
    case 'click':
    case 'double_click':
      return place === null ? 'place' : { action: 'click', place, count: action === 'click' ? 1 : 2 };
    case 'type':
      return text === undefined ? 'text' : { action, text, place };
    case 'key':
      return key === undefined ? 'key' : { action, keys: key };
    case 'scroll': {
      const [right, down] = DIRECTIONS[direction];
      return { action, place, dx: right * amount * STEP_PIXELS, dy: down * amount * STEP_PIXELS };
    }
    case 'wait':
      return { action, ms: seconds * 1_000 };
    case 'goto':
      return url === undefined ? 'url' : { action, url };
  }
}

function placeOf({ x, y, element }: Arguments): BrowserPlace | null {
  if (typeof element === 'number') return { element };
  return typeof x === 'number' && typeof y === 'number' ? { x, y } : null;
}
