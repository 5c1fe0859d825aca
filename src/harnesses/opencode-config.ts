import type { DialectName, McpServer } from '../schema/index.ts';
import type { CheckedContext } from './define.ts';
import { windowOf } from './launch.ts';
import type { OpencodeSettings } from './opencode.ts';

/** The name of floe's provider in opencode's configuration. */
const PROVIDER = 'floe';

/** The package, one of those that come with opencode, that speaks a dialect, and what it leaves to the base URL. */
const PACKAGES: Readonly<Partial<Record<DialectName, string>>> = {
  openai_chat: '@ai-sdk/openai-compatible',
  openai_responses: '@ai-sdk/openai',
  anthropic: '@ai-sdk/anthropic',
};

/** As opencode names a model. */
export function opencodeModel(name: string): string {
  return `${PROVIDER}/${name}`;
}

/** What its configuration file holds. `promptFile`: with the addition to the system prompt; null: there is none. */
export function opencodeConfig(context: CheckedContext<OpencodeSettings>, promptFile: string | null): unknown {
  const { agent, apiKey, baseUrl, contextWindow, dialect, settings } = context;
  const { contextTokens, replyTokens } = windowOf(contextWindow, settings.max_tokens);
  const model = {
    name: agent.model_name,
    limit: { context: contextTokens, output: replyTokens },
    tool_call: true,
    reasoning: true,
    attachment: settings.vision,
    modalities: { input: settings.vision ? ['text', 'image'] : ['text'], output: ['text'] },
  };
  return {
    // It adds the line itself where it is missing.
    $schema: 'https://opencode.ai/config.json',
    provider: {
      [PROVIDER]: {
        npm: PACKAGES[dialect],
        name: PROVIDER,
        // Whoever waits for the policy decides when to give up, and each retry would be a new sample.
        options: { baseURL: `${baseUrl}/v1`, apiKey, timeout: false, headerTimeout: false, chunkTimeout: false },
        models: { [agent.model_name]: model },
      },
    },
    mcp: Object.fromEntries(agent.mcp_servers.map((server) => [server.name, mcpServer(server)])),
    instructions: promptFile === null ? [] : [promptFile],
  };
}

/** What a repository with a configuration of its own must not change: it is merged over all other configuration. */
export function opencodeLastWord(modelName: string): unknown {
  const model = opencodeModel(modelName);
  return {
    model,
    small_model: model,
    enabled_providers: [PROVIDER],
    autoupdate: false,
    share: 'disabled',
    permission: 'allow',
    // A commit of the whole work tree at every step, for an undo that nobody asks for.
    snapshot: false,
    // A call of the model that is no work of the agent.
    agent: { title: { disable: true } },
  };
}

function mcpServer(server: McpServer): unknown {
  if (server.transport === 'stdio') {
    return { type: 'local', command: [server.command, ...server.args], environment: server.env, enabled: true };
  }
  return { type: 'remote', url: server.url, headers: server.headers, oauth: false, enabled: true };
}

/** JSON in which opencode finds nothing to fill in: it replaces `{env:…}` and `{file:…}` wherever they stand in the text. */
export function opencodeJson(value: unknown): string {
  return JSON.stringify(value).replaceAll(/\{(?=env:|file:)/g, '\\u007b');
}
