import { FloeError } from '@floe-rl/core';
import type { Command } from 'commander';
import { quoteArgument } from '../deployment/shell-arguments.ts';
import {
  gatewayArguments,
  serverArguments,
  serverUrls,
  type Topology,
  topologySchema,
} from '../deployment/topology.ts';
import { withClient } from './connection.ts';
import { countOption } from './options.ts';
import { printJson, printLine, printNote } from './print.ts';
import { readYamlFile } from './yaml-file.ts';

/** Registers the commands of `floe topology`, which check and apply a file that describes floe's processes on known machines. */
export function registerTopology(program: Command): void {
  const topology = program
    .command('topology')
    .description('check and apply a file that describes servers, nodes and engines');
  topology
    .command('check <file>')
    .description('check a topology, and print the commands that start its processes')
    .option('--json', 'print JSON')
    .action(async (file: string, options: { json?: boolean }) => {
      const checked = await readYamlFile(file, topologySchema);
      const commands = commandsOf(checked);
      if (options.json) printJson({ servers: serverUrls(checked), commands });
      else for (const words of commands) printLine(words.map(quoteArgument).join(' '));
    });
  topology
    .command('apply <file>')
    .description('register the engines of a topology with its servers')
    .option('--wait <seconds>', 'time to wait until the nodes have applied the change', '15')
    .option('--json', 'print JSON')
    .action(async (file: string, options: { wait: string; json?: boolean }) =>
      apply(await readYamlFile(file, topologySchema), Number(options.wait), options.json === true),
    );
}

function commandsOf(topology: Topology): string[][] {
  return [
    ...topology.server.replicas.map((_, index) => ['floe', 'server', ...serverArguments(topology, index + 1)]),
    ...topology.nodes.map((node) => ['floe', 'gateway', ...gatewayArguments(topology, node.id)]),
  ];
}

async function apply(topology: Topology, waitSeconds: number, asJson: boolean): Promise<void> {
  const connection = {
    url: serverUrls(topology),
    ...(topology.token_file === null ? {} : { tokenFile: topology.token_file }),
    ...(topology.tls === null ? {} : { ca: topology.tls.ca }),
  };
  await withClient(connection, async (client) => {
    for (const engine of topology.engines) {
      const change = await client.addEngine(engine, { waitSeconds, replace: true });
      if (asJson) printJson(change);
      else
        printLine(`${engine.base_url}: revision ${change.revision}, applied by ${change.done.join(', ') || 'no node'}`);
      for (const { node_id, message } of change.problems) printNote(`Problem at node ${node_id}: ${message}`);
      if (change.problems.length > 0) process.exitCode = 1;
    }
  });
}

/**
 * Replaces `--topology <file>` in the arguments of `floe server` and `floe gateway` by the options that the file contains for this replica
 * (`--replica`) or node (`--node-id`). The other options in `argv` come after them and take precedence.
 */
export async function withTopology(argv: readonly string[]): Promise<string[]> {
  const [runtime = '', script = '', command = '', ...rest] = argv;
  const { value: file, others } = takeOption(rest, '--topology');
  if (file === null) return [...argv];
  if (command === 'server') {
    const replica = takeOption(others, '--replica');
    const topology = await readYamlFile(file, topologySchema);
    const number = replica.value === null ? 1 : countOption('--replica', replica.value);
    return [runtime, script, command, ...serverArguments(topology, number), ...replica.others];
  }
  if (command !== 'gateway')
    throw new FloeError(
      'bad_request',
      '--topology is an option of floe server and floe gateway; other commands have --url',
    );
  const node = takeOption(others, '--node-id');
  const topology = await readYamlFile(file, topologySchema);
  const only = topology.nodes.length === 1 ? topology.nodes[0]?.id : undefined;
  const id = node.value ?? only;
  if (id === undefined)
    throw new FloeError('bad_request', '--topology: choose one of the nodes in the file with --node-id');
  return [runtime, script, command, ...gatewayArguments(topology, id), ...node.others];
}

/** Removes an option from arguments. Returns the option's value, or `null` when the option is absent, and the remaining arguments. */
function takeOption(args: readonly string[], name: string): { value: string | null; others: string[] } {
  const index = args.findIndex((arg) => arg === name || arg.startsWith(`${name}=`));
  const option = args[index];
  if (option === undefined) return { value: null, others: [...args] };
  const joined = option.startsWith(`${name}=`);
  const value = joined ? option.slice(name.length + 1) : args[index + 1];
  if (value === undefined || value === '') throw new FloeError('bad_request', `${name} requires a value`);
  return { value, others: [...args.slice(0, index), ...args.slice(index + (joined ? 1 : 2))] };
}
