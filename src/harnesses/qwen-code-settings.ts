import { z } from 'zod';
import type { DialectName, McpServer } from '../schema/index.ts';
import type { CheckedContext } from './define.ts';
import { windowOf } from './window.ts';

export const qwenCodeSettingsSchema = z.strictObject({
  /** Bound that is sent with each request; default: a quarter of the context window. */
  max_tokens: z.int().min(1).optional(),
  /** Whether the policy takes images. */
  vision: z.boolean().default(false),
});
export type QwenCodeSettings = z.output<typeof qwenCodeSettingsSchema>;

/** Longer than any session: whoever waits for the policy decides when to give up, and each retry would be a new sample. */
const TIMEOUT_MS = 24 * 60 * 60 * 1000;

type QwenApi = {
  readonly authType: string;
  readonly keyVariable: string;
  readonly wireApi?: string;
  /** What Qwen Code adds the rest to. */
  readonly path: string;
};

export const QWEN_APIS: Readonly<Record<DialectName, QwenApi>> = {
  openai_chat: { authType: 'openai', keyVariable: 'OPENAI_API_KEY', path: '/v1' },
  openai_responses: { authType: 'openai', keyVariable: 'OPENAI_API_KEY', path: '/v1', wireApi: 'responses' },
  anthropic: { authType: 'anthropic', keyVariable: 'ANTHROPIC_API_KEY', path: '' },
  gemini: { authType: 'gemini', keyVariable: 'GEMINI_API_KEY', path: '' },
};

export function qwenCodeSettings(context: CheckedContext<QwenCodeSettings>): unknown {
  const { agent, baseUrl, contextWindow, dialect, settings } = context;
  const { contextTokens, replyTokens } = windowOf(contextWindow, settings.max_tokens);
  const { authType, keyVariable, path, wireApi } = QWEN_APIS[dialect];
  return {
    // Older forms are migrated, and the file rewritten.
    $version: 4,
    general: { enableAutoUpdate: false, checkpointing: { enabled: false }, gitCoAuthor: { commit: false, pr: false } },
    privacy: { usageStatisticsEnabled: false },
    telemetry: { enabled: false },
    security: { auth: { selectedType: authType }, folderTrust: { enabled: false } },
    model: { name: agent.model_name },
    modelProviders: {
      [authType]: [
        {
          id: agent.model_name,
          baseUrl: `${baseUrl}${path}`,
          envKey: keyVariable,
          ...(wireApi === undefined ? {} : { wireApi }),
          generationConfig: {
            contextWindowSize: contextTokens,
            samplingParams: { max_tokens: replyTokens },
            modalities: { image: settings.vision },
            timeout: TIMEOUT_MS,
            streamIdleTimeoutMs: 0,
            // Otherwise it has no form in which thinking can be sent back, and makes it an assistant's message.
            ...(wireApi === 'responses' ? { extra_body: { include: ['reasoning.encrypted_content'] } } : {}),
          },
        },
      ],
    },
    memory: { enableManagedAutoMemory: false, enableManagedAutoDream: false, enableAutoSkill: false },
    experimental: { emitToolUseSummaries: false },
    agents: { crossSessionMessaging: false },
    mcpServers: Object.fromEntries(agent.mcp_servers.map((server) => [server.name, mcpServer(server)])),
  };
}

function mcpServer(server: McpServer): unknown {
  if (server.transport === 'stdio') {
    return { command: server.command, args: server.args, env: server.env, trust: true };
  }
  const { headers, url } = server;
  return { [server.transport === 'http' ? 'httpUrl' : 'url']: url, headers, trust: true };
}
