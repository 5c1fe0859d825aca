import { resolve } from 'node:path';
import { fileLines, listingLines, outputTexts, replacedText, runNotes, TOOL_DESCRIPTIONS } from '../api/tool-texts.ts';
import { ToolError } from '../api/tools.ts';
import { ArgumentError, type McpContent, type McpTool, type McpToolResult } from './mcp-protocol.ts';
import type { TextFiles } from './text-files.ts';
import type { PythonOutcome, ToolRunLimits } from './tool-messages.ts';
import type { ToolSession } from './tools.ts';

/** Default and maximum time limit of commands and cells in seconds. */
const DEFAULT_SECONDS = 120;
const MAX_SECONDS = 3_600;
/** Maximum number of bytes of stdout and of stderr each, and of a file, that are returned. They are read by a model. */
const MAX_OUTPUT_BYTES = 32 * 1024;
const MAX_READ_BYTES = 64 * 1024;

type Arguments = Readonly<Record<string, unknown>>;

/** Returns the tools `bash`, `python`, `read_file`, `write_file`, `edit_file` and `list_files`. Relative paths are below `cwd`. */
export function mcpTools(shell: ToolSession, python: ToolSession, files: TextFiles, cwd: string): McpTool[] {
  const path = (args: Arguments): string => resolve(cwd, text(args, 'path'));
  const tools: McpTool[] = [
    {
      name: 'bash',
      description: TOOL_DESCRIPTIONS.bash,
      inputSchema: schema({ command: 'string', timeout_seconds: 'number' }, ['command']),
      async call(args, onCancel) {
        const code = text(args, 'command');
        const ended = await inTurn(shell, onCancel, () => shell.run(Buffer.from(code), limits(args)));
        const exit = ended.signal ?? ended.exitCode;
        const parts = [...outputs(ended), ...runNotes(ended, 'shell'), ...(exit === 0 ? [] : [`[exit code: ${exit}]`])];
        return result([textContent(parts)], exit !== 0 || ended.timedOut);
      },
    },
    {
      name: 'python',
      description: TOOL_DESCRIPTIONS.python,
      inputSchema: schema({ code: 'string', timeout_seconds: 'number' }, ['code']),
      async call(args, onCancel) {
        const code = text(args, 'code');
        const ended = await inTurn(python, onCancel, () => python.run(Buffer.from(code), limits(args)));
        const outcome = outcomeOf(ended.detail);
        const values = [outcome.result, outcome.error].filter((value) => value !== null);
        const images = outcome.images.map((data) => ({ type: 'image' as const, data, mimeType: 'image/png' }));
        const parts = [...outputs(ended), ...values, ...runNotes(ended, 'Python process')];
        return result([textContent(parts), ...images], outcome.error !== null || ended.processEnd !== null);
      },
    },
    {
      name: 'read_file',
      description: TOOL_DESCRIPTIONS.readFile,
      inputSchema: schema({ path: 'string', first_line: 'integer', line_count: 'integer' }, ['path']),
      async call(args) {
        const range = { firstLine: count(args, 'first_line') ?? 1, lineCount: count(args, 'line_count') };
        const { content, ...rest } = await files.read(path(args), { ...range, maxBytes: MAX_READ_BYTES });
        return result([textContent([fileLines({ text: content.toString(), ...rest })])], false);
      },
    },
    {
      name: 'write_file',
      description: TOOL_DESCRIPTIONS.writeFile,
      inputSchema: schema({ path: 'string', content: 'string' }, ['path', 'content']),
      async call(args) {
        await files.write(path(args), Buffer.from(text(args, 'content')));
        return result([textContent([`wrote ${path(args)}`])], false);
      },
    },
    {
      name: 'edit_file',
      description: TOOL_DESCRIPTIONS.editFile,
      inputSchema: schema({ path: 'string', old_text: 'string', new_text: 'string', replace_all: 'boolean' }, [
        ...['path', 'old_text', 'new_text'],
      ]),
      async call(args) {
        const [oldText, newText] = [Buffer.from(text(args, 'old_text')), Buffer.from(text(args, 'new_text'))];
        const replaced = await files.edit(path(args), oldText, newText, args.replace_all === true);
        return result([textContent([replacedText(replaced)])], false);
      },
    },
    {
      name: 'list_files',
      description: TOOL_DESCRIPTIONS.listFiles,
      inputSchema: schema({ path: 'string' }, []),
      async call(args) {
        const folder = resolve(cwd, args.path === undefined ? '.' : text(args, 'path'));
        return result([textContent([listingLines(await files.list(folder))])], false);
      },
    },
  ];
  return tools.map((tool) => ({ ...tool, call: observing(tool.call) }));
}

/** The last run of each process. Agents may call a tool several times at once, and a process runs one piece of code at a time. */
const lastRuns = new WeakMap<ToolSession, Promise<unknown>>();

/** Runs code after the earlier runs of the same process have ended. Does not run it if it is cancelled before. */
function inTurn<T>(session: ToolSession, onCancel: (cancel: () => void) => void, run: () => Promise<T>): Promise<T> {
  let isCancelled = false;
  onCancel(() => {
    isCancelled = true;
  });
  const start = (): Promise<T> => {
    if (isCancelled) throw new ToolError('failed', 'the call has been cancelled');
    onCancel(() => session.cancel());
    return run();
  };
  const running = (lastRuns.get(session) ?? Promise.resolve()).then(start);
  lastRuns.set(
    session,
    running.catch(() => {}),
  );
  return running;
}

/** Turns errors that an agent can cause into results, which its model reads. */
function observing(call: McpTool['call']): McpTool['call'] {
  return async (args, onCancel) => {
    try {
      return await call(args, onCancel);
    } catch (error) {
      if (!(error instanceof ToolError)) throw error;
      return result([textContent([`${error.reason}: ${error.message}`])], true);
    }
  };
}

function result(content: readonly McpContent[], isError: boolean): McpToolResult {
  return { content, isError };
}

function textContent(parts: readonly string[]): McpContent {
  return { type: 'text', text: parts.join('\n') };
}

type Ended = Awaited<ReturnType<ToolSession['run']>>;

function outputs({ stdout, stderr }: Ended): string[] {
  return outputTexts({ stdout: stdout.toString(), stderr: stderr.toString() });
}

function outcomeOf(detail: Buffer): PythonOutcome {
  // The cell can have manipulated the process, so that the outcome is not valid.
  try {
    const { result: value = null, error = null, images = [] } = JSON.parse(detail.toString()) as Partial<PythonOutcome>;
    return {
      result: value === null ? null : String(value),
      error: error === null ? null : String(error),
      images: images.map(String),
      omitted: 0,
    };
  } catch {
    return { result: null, error: null, images: [], omitted: 0 };
  }
}

function limits(args: Arguments): ToolRunLimits {
  const seconds = args.timeout_seconds ?? DEFAULT_SECONDS;
  if (typeof seconds !== 'number' || !(seconds > 0))
    throw new ArgumentError('timeout_seconds must be a positive number');
  const timeoutMs = Math.min(seconds, MAX_SECONDS) * 1_000;
  return { timeoutMs, maxOutputBytes: MAX_OUTPUT_BYTES, killsRest: false };
}

function text(args: Arguments, name: string): string {
  const value = args[name];
  if (typeof value !== 'string') throw new ArgumentError(`${name} must be a string`);
  return value;
}

function count(args: Arguments, name: string): number | null {
  const value = args[name] ?? null;
  if (value === null) return null;
  if (!Number.isInteger(value) || Number(value) < 1) throw new ArgumentError(`${name} must be a positive integer`);
  return Number(value);
}

function schema(properties: Readonly<Record<string, string>>, required: readonly string[]): McpTool['inputSchema'] {
  const typed = Object.entries(properties).map(([name, type]) => [name, { type }]);
  return { type: 'object', properties: Object.fromEntries(typed), required, additionalProperties: false };
}
