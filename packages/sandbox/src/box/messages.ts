import type { HelperReply, HelperRequest, HelperSpawnRequest, SpawnResult } from '../spawn/spawner.ts';
import type { UserIds } from './ownership.ts';
import type { ToolReply, ToolRequest } from './tool-messages.ts';
import type { SandboxUser } from './users.ts';

/*
 * Messages between a gateway and the box server of a sandbox, as headers of frames. For commands, the messages are the same as with the spawn
 * helper, with their bytes in the body of the frame.
 */

/** User and group that files are read or created as; `null` for the user and group of the box server. */
export type FileOwner = UserIds | null;

/** A request about files. `id` is repeated in the reply. A relative path is not allowed. */
export type FileRequest =
  /** Answered by `done` when the path is a directory, and by `absent` otherwise. `owner` is the user that works in the directory. */
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
  /** Creates a directory with its missing parents, which belong to `owner`. With `adopts`, an existing directory is given to `owner` too. */
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
  /**
   * Asks for the variables of root's commands. `user` and `variables` describe the sandbox's user. Answered by `done` with root's variables as
   * JSON in the body.
   */
  | {
      readonly type: 'root_variables';
      readonly id: number;
      readonly user: UserIds;
      readonly variables: Readonly<Record<string, string>>;
    }
  /** Reads a regular file that `owner` may read. Answered by `done` with the content as body, by `absent`, or by `too_large`. */
  | {
      readonly type: 'read_file';
      readonly id: number;
      readonly path: string;
      readonly maxBytes: number;
      readonly owner: FileOwner;
    }
  /** Reads at most `maxBytes` bytes of a regular file from an offset. Answered like `read_file`, with an empty body at the end of the file. */
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

/** The same as the spawn helper's request, with stdin in the body of the frame. */
export type BoxSpawn = {
  readonly type: 'spawn';
  readonly id: number;
  readonly request: Omit<HelperSpawnRequest, 'stdin'>;
  readonly hasStdin: boolean;
};

export type BoxRequest = BoxSpawn | Exclude<HelperRequest, { type: 'spawn' }> | FileRequest | ToolRequest;

/** The same as the spawn helper's reply, with stdout and then stderr in the body of the frame. */
export type BoxDone = {
  readonly type: 'done';
  readonly id: number;
  readonly result: Omit<SpawnResult, 'stdout' | 'stderr'>;
  readonly stdoutBytes: number;
};

/** The first message of a box server. It has the environment variables and a user of the sandbox if the gateway asked for them. */
export type BoxReady = {
  readonly type: 'ready';
  readonly environment: Readonly<Record<string, string>>;
  /** `null` when the gateway asked for no user, and when the sandbox has no such user. */
  readonly user: SandboxUser | null;
};

export type BoxReply = BoxReady | BoxDone | Exclude<HelperReply, { type: 'ready' | 'done' }> | FileReply | ToolReply;
