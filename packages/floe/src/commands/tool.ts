import { builtInToolsets } from '@floe-rl/agents';
import type { Command } from 'commander';
import { formatTable, printJson, printLine } from './print.ts';
import { registerInit } from './scaffold/scaffold.ts';

export function registerTool(program: Command): void {
  const tool = program.command('tool').description("list the tools of floe's agents, and make a new one");
  tool.command('list').description('list the tools').option('--json', 'print JSON').action(list);
  registerInit(tool, 'tool');
}

function list(options: { json?: boolean }): void {
  const tools = [...builtInToolsets().values()].map(({ name, description, scope }) => ({ name, description, scope }));
  if (options.json === true) printJson(tools);
  else
    printLine(
      formatTable(
        ['name', 'description'],
        tools.map(({ name, description }) => [name, description]),
      ),
    );
}
