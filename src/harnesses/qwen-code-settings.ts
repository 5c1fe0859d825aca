import { z } from 'zod';
import type { DialectName } from '../schema/index.ts';
import { literal } from './config-text.ts';
import type { CheckedContext } from './define.ts';
import { mcpServer } from './gemini-cli-settings.ts';
import { windowOf } from './launch.ts';

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

/** By dialect, what Qwen Code calls it and where it looks for the key. */
export const QWEN_APIS: Readonly<Record<DialectName, QwenApi>> = {
  openai_chat: { authType: 'openai', keyVariable: 'OPENAI_API_KEY', path: '/v1' },
  openai_responses: { authType: 'openai', keyVariable: 'OPENAI_API_KEY', path: '/v1', wireApi: 'responses' },
  anthropic: { authType: 'anthropic', keyVariable: 'ANTHROPIC_API_KEY', path: '' },
  gemini: { authType: 'gemini', keyVariable: 'GEMINI_API_KEY', path: '' },
};

/** The content of Qwen Code's settings file. */
export function qwenCodeSettings(context: CheckedContext<QwenCodeSettings>): object {
  const { agent, baseUrl, contextWindow, dialect, settings } = context;
  const { contextTokens, replyTokens } = windowOf(contextWindow, settings.max_tokens);
  const { authType, keyVariable, path, wireApi } = QWEN_APIS[dialect];
  return literal({
    // The form of the file: older ones are written anew.
    $version: 4,
    // The policy is asked to sign commits with the name of another model otherwise.
    general: { enableAutoUpdate: false, gitCoAuthor: { commit: false, pr: false } },
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
            // It has tries of its own over those of its client.
            maxRetries: 0,
            // Otherwise it has no form in which thinking can be sent back, and makes it an assistant's message.
            ...(wireApi === 'responses' ? { extra_body: { include: ['reasoning.encrypted_content'] } } : {}),
          },
        },
      ],
    },
    // Nothing outlives the session that could be remembered, and writing it takes calls of the model.
    memory: { enableManagedAutoMemory: false, enableManagedAutoDream: false, enableAutoSkill: false },
    experimental: { emitToolUseSummaries: false },
    agents: { crossSessionMessaging: false },
    mcpServers: Object.fromEntries(agent.mcp_servers.map((server) => [server.name, mcpServer(server)])),
  });
}
