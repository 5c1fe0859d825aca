import { join } from 'node:path';
import { FloeError } from '@floe-rl/core';
import type { HarnessInstall } from '../harness.ts';

/** Maps a platform, `<platform>-<arch>` as Node names it, to the path or target name of the native program's build for this platform. */
type Builds = Readonly<Record<string, string>>;

const CODEX_TARGETS: Builds = {
  'linux-x64': 'x86_64-unknown-linux-musl',
  'linux-arm64': 'aarch64-unknown-linux-musl',
  'darwin-x64': 'x86_64-apple-darwin',
  'darwin-arm64': 'aarch64-apple-darwin',
};

/** The installation of every harness that is installed from a lock in `harness-locks/`, by the harness's name. */
export const HARNESS_INSTALLS = {
  claude_code: {
    version: '2.1.329',
    source: 'npm',
    diskMb: 365,
    nodeVersion: null,
    program: native('claude_code', {
      'linux-x64': 'node_modules/@anthropic-ai/claude-code-linux-x64/claude',
      'linux-arm64': 'node_modules/@anthropic-ai/claude-code-linux-arm64/claude',
      'darwin-x64': 'node_modules/@anthropic-ai/claude-code-darwin-x64/claude',
      'darwin-arm64': 'node_modules/@anthropic-ai/claude-code-darwin-arm64/claude',
    }),
    warmUp: ['--version'],
    warmUpEnv: { CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1', DISABLE_AUTOUPDATER: '1' },
  },
  codex: {
    version: '0.169.0',
    source: 'npm',
    diskMb: 405,
    nodeVersion: null,
    program: native(
      'codex',
      Object.fromEntries(
        Object.entries(CODEX_TARGETS).map(([platform, target]) => [
          platform,
          `node_modules/@openai/codex-${platform}/vendor/${target}/bin/codex`,
        ]),
      ),
    ),
    warmUp: ['--version'],
  },
  gemini_cli: {
    version: '0.61.0',
    source: 'npm',
    diskMb: 290,
    nodeVersion: '22',
    program: 'node_modules/@google/gemini-cli/bundle/gemini.js',
    warmUp: ['--version'],
  },
  mini_swe_agent: {
    version: '2.4.6',
    source: 'pip',
    diskMb: 350,
    nodeVersion: null,
    program: 'venv/bin/mini',
    warmUp: ['--help'],
    warmUpEnv: { MSWEA_SILENT_STARTUP: '1' },
  },
  opencode: {
    version: '1.18.33',
    source: 'npm',
    diskMb: 180,
    nodeVersion: null,
    program: native('opencode', {
      // The build for processors without AVX2 is used, because it runs on all processors and starts as fast as the build with AVX2.
      'linux-x64': 'node_modules/opencode-linux-x64-baseline/bin/opencode',
    }),
    warmUp: ['--version'],
  },
  pi: {
    version: '0.87.1',
    source: 'npm',
    diskMb: 350,
    nodeVersion: '22',
    program: 'node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js',
    warmUp: ['--version'],
  },
  qwen_code: {
    version: '0.24.4',
    source: 'npm',
    diskMb: 335,
    nodeVersion: '22',
    program: 'node_modules/@qwen-code/qwen-code/cli-entry.js',
    warmUp: ['--help'],
    // A run with a prompt loads most of the program and exits because it has no model. With the compile cache that this run fills, a
    // session starts 0.3 s faster.
    cacheRun: ['-p', 'hello'],
    warmUpEnv: { QWEN_USAGE_STATISTICS_ENABLED: 'false' },
  },
} as const satisfies Record<string, HarnessInstall>;

/** Returns {@link HARNESS_INSTALLS} as a map, for lookups by a name that is not known at compile time. */
export function harnessInstalls(): Map<string, HarnessInstall> {
  return new Map(Object.entries(HARNESS_INSTALLS));
}

/**
 * Returns the absolute path of the program's entry file in an installation. Throws `setup_failed` when the harness has no build for this
 * platform.
 */
export function programPath(install: HarnessInstall, installDir: string): string {
  const { program } = install;
  return join(installDir, typeof program === 'string' ? program : program(process.platform, process.arch));
}

/**
 * Returns the command that starts the program, without arguments of the program. Throws `setup_failed` when the harness has no build for
 * this platform.
 */
export function commandOf(install: HarnessInstall, installDir: string): readonly string[] {
  const program = programPath(install, installDir);
  // Python is started explicitly, because the first line of the script still contains the path that Python had before the installation was
  // moved.
  if (install.source === 'pip') return [pythonPath(installDir), program];
  return install.nodeVersion === null ? [program] : [nodePath(installDir), program];
}

/** Returns the path of Node in an installation that includes one. */
function nodePath(installDir: string): string {
  return join(installDir, 'node');
}

/** Returns the path of Python in an installation made by pip. */
export function pythonPath(installDir: string): string {
  return join(installDir, 'venv/bin/python');
}

function native(name: string, builds: Builds): (platform: NodeJS.Platform, arch: string) => string {
  return (platform, arch) => {
    const program = builds[`${platform}-${arch}`];
    if (program !== undefined) return program;
    throw new FloeError('setup_failed', `${name} has no locked build for ${platform}-${arch}`, {
      harness: name,
      builds: Object.keys(builds),
    });
  };
}
