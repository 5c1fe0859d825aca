import { canonicalJson, FloeError, messageOf } from '@floe-rl/core';
import type { McpServer, ToolSpec } from '@floe-rl/core/schema';
import type { AgentDefinition, DefaultTool } from '../loop/episode.ts';
import type { AnyTool } from '../tools/tool.ts';
import {
  type OpenToolset,
  openToolset,
  type ToolsetContext,
  type ToolsetDefinition,
  toolsetProblem,
} from '../tools/toolset.ts';
import type { Catalog } from './catalog.ts';
import type { EpisodeOrder } from './protocol.ts';
import type { ToolsetPool } from './toolset-pool.ts';

/** A toolset of an episode that is to be opened. */
type Wanted = { readonly spec: ToolSpec; readonly toolset: ToolsetDefinition };

type Parts = {
  readonly catalog: Catalog;
  readonly pool: ToolsetPool;
  readonly services: Readonly<Record<string, string>>;
  readonly mcpServers: readonly McpServer[];
  readonly signal: AbortSignal;
};

/** Opens the toolsets of one episode, and closes or returns them at its end. */
export class EpisodeTools {
  readonly instructions: string[] = [];
  /** Names of toolsets without which the agent does, because they cannot work in this session. */
  readonly leftOut: string[] = [];
  private readonly parts: Parts;
  private readonly order: EpisodeOrder;
  private readonly context: ToolsetContext;
  private readonly closes: (() => Promise<void> | void)[] = [];

  constructor(
    order: EpisodeOrder,
    { catalog, pool, services, mcpServers, signal }: Parts,
    session: Pick<ToolsetContext, 'box' | 'environment'>,
  ) {
    this.order = order;
    this.parts = { catalog, pool, services, mcpServers, signal };
    const { seed, metadata, skills } = order;
    const openTools = (specs: readonly ToolSpec[]): Promise<AnyTool[]> => this.openNested(specs);
    this.context = { ...session, seed, metadata, skills, services, mcpServers, openTools };
  }

  /**
   * Opens the tools that the task names or, when it names none, the tools of the agent. Rejects with `unknown_tool`, with `schema_violation`
   * for settings that do not fit and for two tools of one name, or as `open` of a toolset rejects.
   */
  async open(agent: AgentDefinition, settings: unknown): Promise<AnyTool[]> {
    const named = this.order.tools ?? (await this.defaultsOf(agent, settings));
    const hasSkills = this.order.skills.length > 0 && !named.some(({ name }) => name === 'skills');
    const wanted = [...named, ...(hasSkills ? [{ name: 'skills', config: {} }] : [])].map((spec) =>
      this.wantedOf(spec),
    );
    const kept = await this.takeKept(wanted);
    const opened: OpenToolset[] = [];
    for (const one of wanted) {
      const toolset = kept.get(one) ?? (await this.openOne(one));
      opened.push(toolset);
    }
    for (const { instructions } of opened) if (instructions !== undefined) this.instructions.push(instructions);
    return distinctTools(opened);
  }

  /** Closes the toolsets of the session. Toolsets that are kept go back to their pool. Never rejects. */
  async close(): Promise<void> {
    await Promise.allSettled(this.closes.map(async (close) => close()));
  }

  /** Returns the toolsets that the agent has by itself, without those for which the operator has set nothing, and optional ones that cannot work. */
  private async defaultsOf(agent: AgentDefinition, settings: unknown): Promise<ToolSpec[]> {
    const specs: ToolSpec[] = [];
    for (const { name, config = {}, service, isOptional } of defaultTools(agent, settings)) {
      if (service !== undefined && !(service in this.parts.services)) continue;
      const spec = { name, config };
      if (isOptional === true && (await this.problemOf(spec)) !== null) this.leftOut.push(name);
      else specs.push(spec);
    }
    return specs;
  }

  private problemOf(spec: ToolSpec): Promise<string | null> {
    return toolsetProblem(this.wantedOf(spec).toolset, spec.config, this.context, this.parts.signal);
  }

  private wantedOf(spec: ToolSpec): Wanted {
    const { toolsets } = this.parts.catalog;
    const toolset = toolsets.get(spec.name);
    if (toolset !== undefined) return { spec, toolset };
    const known = [...toolsets.keys()];
    const message = `agent.settings.tools: no ${spec.name}; there are: ${known.join(', ')}`;
    throw new FloeError('unknown_tool', message, { known });
  }

  /** Takes the toolsets that live longer than a session, in the order of their keys, so that two sessions never wait for each other. */
  private async takeKept(wanted: readonly Wanted[]): Promise<ReadonlyMap<Wanted, OpenToolset>> {
    const { pool, services, mcpServers, signal } = this.parts;
    const context: ToolsetContext = {
      ...{ box: null, environment: null, seed: 0, metadata: {}, skills: [], services, mcpServers },
      openTools: () => Promise.reject(new FloeError('unsupported', 'a toolset that is kept opens no others')),
    };
    const keyed = wanted.flatMap((one) => {
      const { spec, toolset } = one;
      if (toolset.scope === 'session') return [];
      const owner = toolset.scope === 'group' ? this.order.taskId : null;
      return [{ one, scope: toolset.scope, key: canonicalJson([spec.name, spec.config, owner]) }];
    });
    const kept = new Map<Wanted, OpenToolset>();
    for (const { one, scope, key } of keyed.sort((a, b) => (a.key < b.key ? -1 : 1))) {
      // What is opened here outlives the session, so that it must not end with the session's signal.
      const open = (): Promise<OpenToolset> => opening(one, context, new AbortController().signal);
      const loan = await pool.take({ key, scope }, open, signal);
      this.closes.push(loan.release);
      kept.set(one, loan.toolset);
    }
    return kept;
  }

  private async openOne(wanted: Wanted): Promise<OpenToolset> {
    const opened = await opening(wanted, this.context, this.parts.signal);
    this.closes.push(() => opened.close?.());
    return opened;
  }

  private async openNested(specs: readonly ToolSpec[]): Promise<AnyTool[]> {
    const opened: OpenToolset[] = [];
    for (const one of specs.map((spec) => this.wantedOf(spec))) {
      if (one.toolset.scope !== 'session') {
        throw new FloeError(
          'unsupported',
          `the tool ${one.spec.name} is kept between sessions, so no sub-agent has it`,
        );
      }
      opened.push(await this.openOne(one));
    }
    return distinctTools(opened);
  }
}

/** Returns the tools that an agent has with these settings when the task names none. */
export function defaultTools(agent: AgentDefinition, settings: unknown): Exclude<DefaultTool, string>[] {
  const tools = agent.toolsFor?.(settings) ?? agent.tools ?? [];
  return tools.map((tool) => (typeof tool === 'string' ? { name: tool } : tool));
}

/** Opens a toolset, with errors that name it. */
async function opening({ spec, toolset }: Wanted, context: ToolsetContext, signal: AbortSignal): Promise<OpenToolset> {
  try {
    return await openToolset(toolset, spec.config, context, signal);
  } catch (error) {
    signal.throwIfAborted();
    if (FloeError.is(error)) throw error;
    throw new FloeError('plugin_failed', `tool ${spec.name}: ${messageOf(error)}`, { plugin: spec.name }, error);
  }
}

function distinctTools(opened: readonly OpenToolset[]): AnyTool[] {
  const tools = new Map<string, AnyTool>();
  for (const tool of opened.flatMap((toolset) => toolset.tools)) {
    if (tools.has(tool.name)) {
      throw new FloeError('schema_violation', `agent.settings.tools: two tools have the name ${tool.name}`);
    }
    tools.set(tool.name, tool);
  }
  return [...tools.values()];
}
