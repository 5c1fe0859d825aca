import { McpServer } from './mcp-protocol.ts';
import { mcpTools } from './mcp-tools.ts';
import { TextFiles } from './text-files.ts';
import { ToolSession } from './tools.ts';

/*
 * The MCP server: a program that a harness starts inside its sandbox, and that gives it floe's tools over stdio. Commands get the environment
 * and start in the working directory of the server. It ends, with everything that it started, when its input ends. It imports only modules
 * of Node and files of floe that do the same, because the sandbox contains nothing else.
 */

const cwd = process.cwd();
const env = Object.fromEntries(
  Object.entries(process.env).flatMap(([name, value]) => (value === undefined ? [] : [[name, value]])),
);
const options = { root: null, marks: {}, onIdle: async () => {} };
const spec = { program: null, cwd, env, prefix: [] };
const sessions = {
  shell: new ToolSession({ ...spec, kind: 'shell' }, options),
  python: new ToolSession({ ...spec, kind: 'python' }, options),
};
const tools = mcpTools(sessions.shell, sessions.python, new TextFiles(null), cwd);
const server = new McpServer({ name: 'floe', version: '1' }, tools, (line) => void process.stdout.write(line));

process.stdin.setEncoding('utf8');
process.stdin.on('data', (chunk: string) => {
  try {
    server.push(chunk);
  } catch (error) {
    process.stderr.write(`${(error as Error).message}\n`);
    end();
  }
});
process.stdin.on('end', end);
process.stdout.on('error', end);
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, end);

function end(): void {
  Promise.all(Object.values(sessions).map((session) => session.close())).then(() => process.exit(0));
}
