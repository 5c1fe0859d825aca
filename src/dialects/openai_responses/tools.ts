import { createHash } from 'node:crypto';
import { parseAs } from '../../core/parse.ts';
import type { ChatTool, ToolChoice } from '../../schema/index.ts';
import type { Conversation } from '../conversation.ts';
import { customFunction } from '../custom-tool.ts';
import type { ToolForm } from '../dialect.ts';
import {
  customToolSchema,
  type ForeignCustomTool,
  type ForeignFunctionTool,
  functionToolSchema,
  namespaceToolSchema,
  toolChoiceSchema,
  toolSchema,
} from './schema.ts';
import { violation, WHAT } from './violation.ts';

/** Longest function name that OpenAI-compatible engines take. */
const MAX_NAME_CHARS = 64;
/** Of the digest in a shortened name: two names of one request do not meet by chance. */
const DIGEST_CHARS = 12;

/**
 * The canonical name of a tool: its own, or one made of namespace and name. It does not depend on the request's other tools,
 * so that calls in the history get it too where the tools are gone.
 */
export function canonicalName(namespace: string | null | undefined, name: string): string {
  if (!namespace) return name;
  const full = `${namespace}__${name}`;
  if (full.length <= MAX_NAME_CHARS) return full;
  const digest = createHash('sha256').update(full).digest('hex').slice(0, DIGEST_CHARS);
  return `${full.slice(0, MAX_NAME_CHARS - DIGEST_CHARS - 1)}_${digest}`;
}

/** Tools in canonical form, with what is needed to call them as they were declared. */
export class ToolTable {
  readonly tools: ChatTool[] = [];
  readonly forms = new Map<string, ToolForm>();
  private readonly conversation: Conversation;
  private readonly taken = new Map<string, string>();

  constructor(conversation: Conversation) {
    this.conversation = conversation;
  }

  /** `repeated`: the same declaration may come again. Throws `schema_violation` for a second tool of one name. */
  add(declared: unknown, at: string, repeated = false): void {
    this.addTo(null, declared, at, repeated);
  }

  private addTo(namespace: string | null, declared: unknown, at: string, repeated: boolean): void {
    const { type } = parseAs(toolSchema, declared, WHAT, at);
    if (type === 'function') {
      const tool = parseAs(functionToolSchema, declared, WHAT, at);
      if (tool.defer_loading === true) this.conversation.note('defer_loading ignored: the tool is sent in full');
      const form: ToolForm | null = namespace === null ? null : { kind: 'namespaced', namespace, name: tool.name };
      this.enter(functionTool(canonicalName(namespace, tool.name), tool), form, at, repeated);
    } else if (type === 'custom') {
      const tool = parseAs(customToolSchema, declared, WHAT, at);
      const form: ToolForm = { kind: 'custom', ...(namespace === null ? {} : { namespace, name: tool.name }) };
      this.enter(customTool(canonicalName(namespace, tool.name), tool), form, at, repeated);
    } else if (type === 'namespace' && namespace === null) {
      const group = parseAs(namespaceToolSchema, declared, WHAT, at);
      if (group.description) this.conversation.note('description of a tool namespace dropped');
      for (const [index, tool] of group.tools.entries()) {
        this.addTo(group.name, tool, `${at}.tools.${index}`, repeated);
      }
    } else {
      this.conversation.note(`hosted tool ${type.slice(0, MAX_NAME_CHARS)} dropped`);
    }
  }

  private enter(tool: ChatTool, form: ToolForm | null, at: string, repeated: boolean): void {
    const { name } = tool.function;
    const text = JSON.stringify([tool, form]);
    const earlier = this.taken.get(name);
    if (earlier !== undefined) {
      if (repeated && earlier === text) return;
      throw violation(at, `a second tool with the name ${JSON.stringify(name)}`);
    }
    this.taken.set(name, text);
    this.tools.push(tool);
    if (form !== null) this.forms.set(name, form);
  }

  choice(choice: unknown): ToolChoice | null {
    switch (choice) {
      case undefined:
      case null:
        return null;
      case 'auto':
      case 'none':
      case 'required':
        return choice;
    }
    const { type, name, namespace, mode } = parseAs(toolChoiceSchema, choice, WHAT, 'tool_choice');
    if (type === 'allowed_tools') {
      this.conversation.note('allowed_tools: the tool list is sent in full');
      return mode ?? 'auto';
    }
    if (type !== 'function' && type !== 'custom') {
      this.conversation.note(`choice of the hosted tool ${type.slice(0, MAX_NAME_CHARS)} ignored`);
      return 'auto';
    }
    return this.conversation.forcedTool(canonicalName(namespace, name ?? ''), this.tools);
  }
}

function functionTool(name: string, { description, parameters }: ForeignFunctionTool): ChatTool {
  return {
    type: 'function',
    function: { name, ...(description ? { description } : {}), ...(parameters ? { parameters } : {}) },
  };
}

/** The same tool in the shape that Chat Completions declares it in. */
function customTool(name: string, { description, format }: ForeignCustomTool): ChatTool {
  const grammar = format?.type === 'grammar' ? { syntax: format.syntax, definition: format.definition } : undefined;
  return customFunction({ name, description, format: grammar && { type: 'grammar', grammar } });
}
