import { shellWord } from '@floe-rl/core';
import { isEmpty, present, type RequestNotes, refuseUnless, requireValid } from './notes.ts';
import { type PolarAgent, type PolarMcpServer, polarAgentSchema } from './schema.ts';

/** The fields of a floe task that a Polar agent determines. The caller validates them. */
export type AgentFields = {
  readonly agent: Record<string, unknown>;
  /** Sampling parameters from `agent.settings.model_kwargs`, which in floe belong to the task. */
  readonly sampling: Record<string, unknown>;
};

/** Names of the sampling parameters in Polar's `model_kwargs`, and in the `extra_body` inside `model_kwargs`, of the agent mini_swe_agent. */
const SAMPLING = ['temperature', 'top_p', 'max_tokens', 'seed', 'top_k', 'min_p', 'repetition_penalty'] as const;
/** Parameters that change how an engine returns text, but not which tokens are sampled. */
const TEXT_ONLY = ['skip_special_tokens', 'no_stop_trim', 'include_stop_str_in_output', 'drop_params'] as const;

/** Returns the fields of a floe task for a Polar agent. Throws `unsupported` for a key with an effect that floe lacks. */
export function agentOf(agent: PolarAgent, notes: RequestNotes): AgentFields {
  notes.warnUnknown('agent', agent, polarAgentSchema.shape);
  refuseUnless(agent.import_path == null, 'agent.import_path', 'floe loads no harness class; name a harness');
  const { model_kwargs: modelKwargs, sampling_seed: seed, ...settings } = agent.settings;
  const shell = agent.custom_shell ?? null;
  const command = typeof shell === 'string' || shell === null ? shell : commandText(shell);
  const env = { ...agent.env, ...(typeof shell === 'object' ? shell?.env : {}) };
  return {
    agent: present({
      harness: agent.harness,
      model_name: agent.model_name,
      settings: present(settings),
      env,
      mcp_servers: agent.mcp_servers.map(mcpServerOf),
      skills_path: agent.skills_path,
      custom_shell: command,
    }),
    sampling: present({ ...samplingOf(modelKwargs, notes), ...(seed === undefined ? {} : { seed }) }),
  };
}

/** Returns a shell script that runs the command in its folder. */
function commandText({ command, cwd }: { command: string; cwd?: string | null | undefined }): string {
  return cwd == null ? command : `cd ${shellWord(cwd)} || exit\n${command}`;
}

function mcpServerOf({ name, transport, command, args, url }: PolarMcpServer): object {
  if (transport === 'stdio') return present({ name, transport, command, args });
  return present({ name, transport: transport === 'sse' ? transport : 'http', url });
}

function samplingOf(modelKwargs: unknown, notes: RequestNotes): Record<string, unknown> {
  if (isEmpty(modelKwargs)) return {};
  const path = 'agent.settings.model_kwargs';
  requireValid(typeof modelKwargs === 'object' && !Array.isArray(modelKwargs), path, 'must be an object');
  const { extra_body: extraBody, ...kwargs } = modelKwargs as Record<string, unknown>;
  const sampling: Record<string, unknown> = {};
  for (const [key, value] of Object.entries({ ...kwargs, ...(extraBody as object | null) })) {
    if (isEmpty(value)) continue;
    if (TEXT_ONLY.some((name) => name === key)) notes.warn(`${path}.${key}`, 'has no effect in floe and is ignored');
    else if (SAMPLING.some((name) => name === key)) sampling[key] = value;
    else refuseUnless(value === 0 || value === false, `${path}.${key}`, 'floe cannot set this sampling parameter');
  }
  // A `top_k` of -1 means no limit in Polar; floe's value for no limit is 0.
  return sampling.top_k === -1 ? { ...sampling, top_k: 0 } : sampling;
}
