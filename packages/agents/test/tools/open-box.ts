import type { Runtime, RuntimeTools } from '@floe-rl/sandbox';
import { never, Workbench } from '../../../sandbox/test/backends/workbench.ts';
import { checkArguments } from '../../src/tools/checked-arguments.ts';
import type { AnyTool, Box, ToolResult } from '../../src/tools/tool.ts';
import { type OpenToolset, openToolset, type ToolsetContext, type ToolsetDefinition } from '../../src/tools/toolset.ts';

/** A sandbox of the back end `local` with the tools of a session. */
export class TestBox {
  readonly workdir: string;
  readonly box: Box;
  private readonly bench: Workbench;
  private readonly runtime: Runtime;
  private readonly tools: RuntimeTools;
  private readonly opened: OpenToolset[] = [];

  private constructor(bench: Workbench, runtime: Runtime, tools: RuntimeTools) {
    this.bench = bench;
    this.runtime = runtime;
    this.tools = tools;
    this.workdir = runtime.paths.workdir;
    this.box = {
      workdir: this.workdir,
      shell: (options) => tools.shell(options),
      python: (options) => tools.python(options),
      browser: (options) => tools.browser(options),
      readFile: (path, options, signal) => tools.readFile(path, options, signal),
      writeFile: (path, content, signal) => tools.writeFile(path, content, signal),
      editFile: (path, edit, signal) => tools.editFile(path, edit, signal),
      list: (path, signal) => tools.list(path, signal),
    };
  }

  static async open(): Promise<TestBox> {
    const bench = await Workbench.open();
    const runtime = await bench.start('local');
    return new TestBox(bench, runtime, await runtime.openTools(never));
  }

  /** Opens a toolset, and returns a function that calls its tools as the loop does. */
  async use(toolset: ToolsetDefinition, config: unknown = {}, more: Partial<ToolsetContext> = {}) {
    const open = await openToolset(toolset, config, { ...NOTHING, box: this.box, ...more }, never);
    this.opened.push(open);
    return {
      tools: open.tools,
      call: (name: string, args: unknown) => callTool(open.tools, name, args, this.box),
    };
  }

  /** Closes the toolsets that were opened. */
  async closeToolsets(): Promise<void> {
    for (const { close } of this.opened.splice(0)) await close?.();
  }

  async close(): Promise<void> {
    await this.closeToolsets();
    await this.tools.close();
    await this.runtime.stop();
    await this.bench.close();
  }
}

/** The context of toolsets in a session without a sandbox, an environment, skills and services. */
const NOTHING: ToolsetContext = {
  ...{ box: null, environment: null, seed: 0, metadata: {}, skills: [], services: {}, mcpServers: [] },
  openTools: () => Promise.reject(new Error('there are no further tools')),
};

/** Calls a tool with arguments that are checked as the loop checks them. Rejects with an Error for arguments that do not fit. */
async function callTool(
  tools: readonly AnyTool[],
  name: string,
  value: unknown,
  box: Box | null = null,
): Promise<ToolResult> {
  const tool = tools.find((one) => one.name === name);
  if (tool === undefined) throw new Error(`no tool ${name}`);
  const checked = checkArguments(tool, value);
  if ('problem' in checked) throw new Error(`wrong arguments: ${checked.problem}`);
  const context = { services: {}, count: () => {}, measure: () => {}, box };
  const result = await (tool as Extract<AnyTool, { effect: unknown }>).run(checked.args, context as never, never);
  return typeof result === 'string' ? { content: result } : result;
}
