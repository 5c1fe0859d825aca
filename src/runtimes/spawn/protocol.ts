import type { SpawnRequest, SpawnResult } from './spawner.ts';

/** What the gateway and its spawn helper say to each other. Both are the same version of floe, so nothing is parsed. */
export type HelperRequest =
  | {
      readonly type: 'spawn';
      readonly id: number;
      readonly request: Omit<SpawnRequest, 'stdin' | 'onOutput'> & {
        readonly stdin: Buffer | 'hold' | undefined;
        readonly tellOutput: boolean;
      };
    }
  | { readonly type: 'kill'; readonly id: number }
  | { readonly type: 'close' };

export type HelperReply =
  | { readonly type: 'ready' }
  | { readonly type: 'started'; readonly id: number; readonly pid: number }
  | { readonly type: 'failed'; readonly id: number; readonly message: string }
  | { readonly type: 'output'; readonly id: number }
  | { readonly type: 'line'; readonly id: number; readonly line: string }
  | { readonly type: 'done'; readonly id: number; readonly result: SpawnResult };
