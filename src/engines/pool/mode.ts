import { FloeError } from '../../core/errors.ts';
import type { EngineInfo, EngineMode, TemplateFacts } from '../../schema/index.ts';
import type { PoolMode } from '../pool.ts';

/** See `EnginePool.modeOf`; `engines` are those of the pool. */
export function modeOf(pool: string, engines: readonly EngineInfo[], asked: EngineMode): PoolMode {
  const [first, ...others] = engines;
  if (first === undefined) throw new FloeError('engine_unavailable', `no engine is registered in pool ${pool}`);
  const template = others.reduce(
    (facts, { capabilities }) => commonFacts(facts, capabilities.template),
    templateOf(first),
  );
  if (asked !== 'chat') {
    const obstacle = engines.map(obstacleOf).find((reason) => reason !== null) ?? null;
    if (obstacle === null) return { mode: 'tokens', template };
    if (asked === 'tokens')
      throw new FloeError('unsupported', `pool ${pool} cannot be used in tokens mode: ${obstacle}`);
  }
  return { mode: engines.every(({ capabilities }) => capabilities.token_ids) ? 'chat' : 'text', template };
}

const templateOf = ({ capabilities }: EngineInfo): TemplateFacts => capabilities.template;

/** Why an engine cannot be used in tokens mode; null: it can. */
function obstacleOf({ engine_id, kind, capabilities }: EngineInfo): string | null {
  const { token_ids, token_input, notes } = capabilities;
  if (token_ids && token_input !== 'none') return null;
  const reason = token_ids ? 'takes no token ids as a prompt' : 'tells no token ids';
  return `engine ${engine_id} (${kind}) ${[reason, ...notes].join('; ')}`;
}

/** What holds for both. */
function commonFacts(one: TemplateFacts, other: TemplateFacts): TemplateFacts {
  const sameClose =
    one.close_ids.length === other.close_ids.length && one.close_ids.every((id, i) => id === other.close_ids[i]);
  return {
    close_ids: sameClose ? one.close_ids : [],
    tail_render: one.tail_render && other.tail_render,
    thinking: {
      tool_results: one.thinking.tool_results === other.thinking.tool_results ? one.thinking.tool_results : 'unknown',
      user_message: one.thinking.user_message === other.thinking.user_message ? one.thinking.user_message : 'unknown',
    },
    fingerprint: one.fingerprint === other.fingerprint ? one.fingerprint : null,
  };
}
