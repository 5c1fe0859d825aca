import type { HelperReply, HelperRequest, HelperSpawnRequest, SpawnResult } from '../spawn/spawner.ts';
import type { UserIds } from './ownership.ts';
import type { ToolReply, ToolRequest } from './tool-messages.ts';
import type { SandboxUser } from './users.ts';

/*
 * Messages between a gateway and the box server of a sandbox, as headers of frames. The messages about commands are those of the spawn
 * helper; their bytes are in the body of the frame.
 */

/** User and group whose files are read or created; `null` for those of the box server. */
export type FileOwner = UserIds | null;

/** A request about files. `id` is repeated in the reply. A relative path is not allowed. */
export type FileRequest =
  /** Resolves with `done` when the path is a directory, and with `absent` otherwise. `owner` is who works in it. */
  | { readonly type: 'check_directory'; readonly id: number; readonly path: string; readonly owner: FileOwner }
  /** Opens a new file that replaces an existing one, and creates its parent directories. Not answered, unlike `close_file`. */
  | {
      readonly type: 'create_file';
      readonly id: number;
      readonly path: string;
      readonly mode: number;
      readonly owner: FileOwner;
    }
  /** Appends the body to the open file with this id. Not answered. */
  | { readonly type: 'append'; readonly id: number }
  /** Closes the open file with this id. The answer also reports failures of `create_file` and `append`. */
  | { readonly type: 'close_file'; readonly id: number }
  /** Creates a directory with its missing parents, which belong to `owner`; with `adopts`, an existing directory does too. */
  | {
      readonly type: 'create_directory';
      readonly id: number;
      readonly path: string;
      readonly mode: number;
      readonly owner: FileOwner;
      readonly adopts?: boolean;
    }
  | {
      readonly type: 'create_link';
      readonly id: number;
      readonly path: string;
      readonly target: string;
      readonly owner: FileOwner;
    }
  /** Lets all users pass through the directories that contain the path. */
  | { readonly type: 'make_reachable'; readonly id: number; readonly path: string }
  /** Answered by `done` with the variables for commands of root, beside those of this user, as JSON in the body. */
  | {
      readonly type: 'root_variables';
      readonly id: number;
      readonly user: UserIds;
      readonly variables: Readonly<Record<string, string>>;
    }
  /** Reads a regular file, which `owner` must be allowed to read: answered by `done` with the content as body, by `absent`, or by `too_large`. */
  | {
      readonly type: 'read_file';
      readonly id: number;
      readonly path: string;
      readonly maxBytes: number;
      readonly owner: FileOwner;
    }
  /** Reads the bytes of a regular file from an offset, at most `maxBytes`: answered as `read_file`, with an empty body at the end of the file. */
  | {
      readonly type: 'read_part';
      readonly id: number;
      readonly path: string;
      readonly offset: number;
      readonly maxBytes: number;
    };

export type FileReply =
  | { readonly type: 'file_done'; readonly id: number }
  | { readonly type: 'file_absent'; readonly id: number }
  | { readonly type: 'file_too_large'; readonly id: number }
  | { readonly type: 'file_failed'; readonly id: number; readonly message: string };

/** As the spawn helper's request, with stdin in the body of the frame. */
export type BoxSpawn = {
  readonly type: 'spawn';
  readonly id: number;
  readonly request: Omit<HelperSpawnRequest, 'stdin'>;
  readonly hasStdin: boolean;
};

export type BoxRequest = BoxSpawn | Exclude<HelperRequest, { type: 'spawn' }> | FileRequest | ToolRequest;

/** As the spawn helper's reply, with stdout and then stderr in the body of the frame. */
export type BoxDone = {
  readonly type: 'done';
  readonly id: number;
  readonly result: Omit<SpawnResult, 'stdout' | 'stderr'>;
  readonly stdoutBytes: number;
};

/** The first message of a box server, with its environment variables and a user of the sandbox, where the gateway asked for them. */
export type BoxReady = {
  readonly type: 'ready';
  readonly environment: Readonly<Record<string, string>>;
  /** `null` also when the sandbox has no such user. */
  readonly user: SandboxUser | null;
};

export type BoxReply = BoxReady | BoxDone | Exclude<HelperReply, { type: 'ready' | 'done' }> | FileReply | ToolReply;
