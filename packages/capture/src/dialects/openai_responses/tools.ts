import { createHash } from 'node:crypto';
import { parseAs } from '@floe-rl/core';
import type { ChatTool, ToolChoice } from '@floe-rl/core/schema';
import type { Conversation } from '../conversation.ts';
import { customFunction } from '../custom-tool.ts';
import type { ToolForm } from '../dialect.ts';
import { noteIgnoredFields } from '../ignored-fields.ts';
import {
  customToolSchema,
  functionToolSchema,
  namespaceToolSchema,
  REQUEST_NAME,
  toolChoiceSchema,
  toolSchema,
  violation,
  type WireCustomTool,
  type WireFunctionTool,
} from './schema.ts';

/** Longest function name that OpenAI-compatible engines accept, in characters. */
const MAX_NAME_CHARS = 64;
/** Number of digest characters in a shortened function name, enough that two names of one request do not collide. */
const DIGEST_CHARS = 12;

/**
 * Returns the name of a tool in floe's internal form: its own name, or its namespace and name joined. The result does not depend on the
 * other tools of the request, so a call in the history keeps its name even when the request no longer declares the tool.
 */
export function canonicalName(namespace: string | null | undefined, name: string): string {
  if (!namespace) return name;
  const full = `${namespace}__${name}`;
  if (full.length <= MAX_NAME_CHARS) return full;
  const digest = createHash('sha256').update(full).digest('hex').slice(0, DIGEST_CHARS);
  return `${full.slice(0, MAX_NAME_CHARS - DIGEST_CHARS - 1)}_${digest}`;
}

/** Collects the tools of a request in floe's internal form, and the form in which the client declared each of them. */
export class ToolTable {
  readonly tools: ChatTool[] = [];
  readonly forms = new Map<string, ToolForm>();
  private readonly conversation: Conversation;
  /** For each tool, by its internal name, a text that identifies a repeated declaration: its JSON text and its {@link ToolForm}. */
  private readonly declared = new Map<string, string>();

  constructor(conversation: Conversation) {
    this.conversation = conversation;
  }

  /**
   * Adds a declared tool; `at` is its path in the request. Throws `schema_violation` for a second tool with the same name, unless
   * `mayRepeat` is set and both declarations are equal.
   */
  add(declared: unknown, at: string, mayRepeat = false): void {
    this.addTo(null, declared, at, mayRepeat);
  }

  private addTo(namespace: string | null, declared: unknown, at: string, mayRepeat: boolean): void {
    const { type } = parseAs(toolSchema, declared, REQUEST_NAME, at);
    if (type === 'function') {
      const tool = parseAs(functionToolSchema, declared, REQUEST_NAME, at);
      const known = { used: { type: true, ...functionToolSchema.shape }, harmless: {} };
      noteIgnoredFields(this.conversation, declared, known, 'tools.');
      if (tool.strict === true) this.conversation.note('strict of a tool ignored');
      if (tool.defer_loading === true) this.conversation.note('defer_loading ignored: the tool is sent in full');
      const form: ToolForm | null = namespace === null ? null : { kind: 'namespaced', namespace, name: tool.name };
      this.enter(functionTool(canonicalName(namespace, tool.name), tool), form, at, mayRepeat);
    } else if (type === 'custom') {
      const tool = parseAs(customToolSchema, declared, REQUEST_NAME, at);
      const form: ToolForm = { kind: 'custom', ...(namespace === null ? {} : { namespace, name: tool.name }) };
      this.enter(customTool(canonicalName(namespace, tool.name), tool), form, at, mayRepeat);
    } else if (type === 'namespace' && namespace === null) {
      const group = parseAs(namespaceToolSchema, declared, REQUEST_NAME, at);
      if (group.description) this.conversation.note('description of a tool namespace dropped');
      for (const [index, tool] of group.tools.entries()) {
        this.addTo(group.name, tool, `${at}.tools.${index}`, mayRepeat);
      }
    } else {
      this.conversation.note(`hosted tool ${type.slice(0, MAX_NAME_CHARS)} dropped`);
    }
  }

  private enter(tool: ChatTool, form: ToolForm | null, at: string, mayRepeat: boolean): void {
    const { name } = tool.function;
    const text = JSON.stringify([tool, form]);
    const earlier = this.declared.get(name);
    if (earlier !== undefined) {
      if (mayRepeat && earlier === text) return;
      throw violation(at, `a second tool with the name ${JSON.stringify(name)}`);
    }
    this.declared.set(name, text);
    this.tools.push(tool);
    if (form !== null) this.forms.set(name, form);
  }

  /** Translates the request's `tool_choice`. Throws `schema_violation` for a value that is not a tool choice. */
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
    const { type, name, namespace, mode } = parseAs(toolChoiceSchema, choice, REQUEST_NAME, 'tool_choice');
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

function functionTool(name: string, { description, parameters }: WireFunctionTool): ChatTool {
  return {
    type: 'function',
    function: { name, ...(description ? { description } : {}), ...(parameters ? { parameters } : {}) },
  };
}

/** Translates a custom tool by first converting it to the form in which Chat Completions declares it. */
function customTool(name: string, { description, format }: WireCustomTool): ChatTool {
  const grammar = format?.type === 'grammar' ? { syntax: format.syntax, definition: format.definition } : undefined;
  return customFunction({ name, description, format: grammar && { type: 'grammar', grammar } });
}
