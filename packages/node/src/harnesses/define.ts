import { FloeError, fieldError, parseAs } from '@floe-rl/core';
import type { AgentSpec, DialectName, McpServer } from '@floe-rl/core/schema';
import { z } from 'zod';
import type {
  AgentFeature,
  HarnessAdapter,
  HarnessInstall,
  HarnessReport,
  HarnessVerdict,
  Launch,
  LaunchContext,
} from './harness.ts';

/** Name of the MCP server of floe's tools. Harnesses make it a part of the names of the tools. */
const TOOL_SERVER = 'floe';
/** Time limit in milliseconds of a call to floe's tools in a harness. It is longer than the longest limit that a call can set for itself. */
const TOOL_CALL_MS = 3_660_000;

/** A launch context with a chosen dialect, checked settings of the adapter, and a checked directory of the installation. */
export type CheckedContext<Settings> = Omit<LaunchContext, 'installDir' | 'toolServer'> & {
  readonly dialect: DialectName;
  readonly settings: Settings;
  /**
   * Directory of the harness's installation. It is an empty string when the harness has no installation or the task's image contains the
   * program.
   */
  readonly installDir: string;
};

/** The part of an adapter that is specific to its harness. {@link defineHarness} adds the part that all adapters share. */
export type HarnessDefinition<Settings> = {
  readonly name: string;
  readonly dialects: readonly [DialectName, ...DialectName[]];
  readonly features: readonly AgentFeature[];
  readonly install: HarnessInstall | null;
  /** Schema of `agent.settings`. */
  readonly settings: z.ZodType<Settings>;
  /**
   * Whether these settings name a program in the task's image, so that no installation is needed. When the function is left out, no
   * settings name such a program.
   */
  inImage?(settings: Settings): boolean;
  /** Checks rules that combine the agent's fields and settings. Calls `refuseAgent` for an agent that the harness cannot run. */
  check?(agent: AgentSpec, settings: Settings): void;
  /** Whether the agent runs on the node instead of in the sandbox; default: false. */
  readonly runsOnNode?: true;
  launch(context: CheckedContext<Settings>): Launch;
  judge(report: HarnessReport): HarnessVerdict;
};

/** Makes an adapter from its definition and adds the checks that all adapters share. */
export function defineHarness<Settings>(definition: HarnessDefinition<Settings>): HarnessAdapter {
  const { name, dialects, features, install } = definition;
  const settingsOf = (agent: AgentSpec): Settings =>
    parseAs(definition.settings, agent.settings, 'agent.settings', 'agent.settings');
  const inImage = (agent: AgentSpec): boolean => definition.inImage?.(settingsOf(agent)) ?? false;
  return {
    name,
    dialects,
    features,
    install,
    inImage,
    runsOnNode: definition.runsOnNode ?? false,
    checkAgent(agent) {
      const settings = settingsOf(agent);
      refuseDialect(name, dialects, agent);
      for (const [feature, field] of requestedFeatures(agent)) {
        if (!features.includes(feature)) refuseAgent(field, `the ${name} harness does not support it`);
      }
      refuseSecondToolServer(agent);
      if (features.includes('custom_shell') && (agent.custom_shell ?? '').trim() === '') {
        refuseAgent('agent.custom_shell', `is required by the ${name} harness`, 'schema_violation');
      }
      definition.check?.(agent, settings);
    },
    launch(context) {
      const { agent, installDir } = context;
      if (install !== null && installDir === null && !inImage(agent)) {
        throw new FloeError('harness_missing', `${name} is not installed; run \`floe harness install ${name}\``, {
          harness: name,
        });
      }
      return definition.launch({
        ...context,
        agent: agent.floe_tools ? withToolServer(context) : agent,
        dialect: agent.dialect ?? dialects[0],
        settings: settingsOf(agent),
        installDir: installDir ?? '',
      });
    },
    judge: (report) => definition.judge(report),
  };
}

function refuseDialect(name: string, dialects: readonly DialectName[], { dialect }: AgentSpec): void {
  if (dialect === undefined || dialects.includes(dialect)) return;
  refuseAgent('agent.dialect', `${name} does not support ${dialect}; it supports ${dialects.join(', ')}`);
}

/** Refuses an MCP server of the task that has the name of floe's own, when the agent has both. */
function refuseSecondToolServer({ floe_tools: isOffered, mcp_servers: servers }: AgentSpec): void {
  const index = servers.findIndex(({ name }) => name === TOOL_SERVER);
  if (!isOffered || index === -1) return;
  const message = `${TOOL_SERVER} is the name of the server of agent.floe_tools`;
  refuseAgent(`agent.mcp_servers.${index}.name`, message, 'schema_violation');
}

/** Returns the agent with floe's tools as one more MCP server. */
function withToolServer({ agent, toolServer }: LaunchContext): AgentSpec {
  const [command = '', ...args] = toolServer.command;
  const server: McpServer = { name: TOOL_SERVER, transport: 'stdio', command, args, env: toolServer.env };
  return { ...agent, mcp_servers: [...agent.mcp_servers, server] };
}

/**
 * Returns the time limit in milliseconds that a harness must set for calls to an MCP server of the agent; `undefined` for the default of the
 * harness. Its default is too short for floe's tools, which have time limits of their own.
 */
export function toolCallMs({ floe_tools: isOffered }: AgentSpec, { name }: McpServer): number | undefined {
  return isOffered && name === TOOL_SERVER ? TOOL_CALL_MS : undefined;
}

/** Lists the features that the agent uses, each with the field of the task that requests it. */
function requestedFeatures(agent: AgentSpec): readonly (readonly [AgentFeature, string])[] {
  const all: readonly (readonly [AgentFeature, string, boolean])[] = [
    ['mcp_servers', 'agent.mcp_servers', agent.mcp_servers.length > 0],
    ['mcp_servers', 'agent.floe_tools', agent.floe_tools],
    ['skills', 'agent.skills', agent.skills.length > 0],
    ['skills', 'agent.skills_path', agent.skills_path !== undefined],
    ['system_prompt', 'agent.system_prompt', agent.system_prompt !== undefined],
    ['custom_shell', 'agent.custom_shell', agent.custom_shell !== undefined],
  ];
  return all.filter(([, , present]) => present).map(([feature, field]) => [feature, field]);
}

/** Schema of a setting that contains the absolute path of a program in the task's image. */
export const imageProgramSchema = z.string().regex(/^\/[^\0]+$/, 'must be an absolute path in the image');

/** Throws an error for an agent that the harness cannot run. `path` names the field of the task, such as `agent.skills`. */
export function refuseAgent(
  path: string,
  message: string,
  code: 'unsupported' | 'schema_violation' = 'unsupported',
): never {
  throw fieldError(path, message, { code });
}
