/** The exports of `@floe-rl/sandbox` for other packages. */
export { SANDBOX_UID, type SandboxFile } from './api/files.ts';
export {
  type Enforcement,
  type ExecRequest,
  type ExecResult,
  type KillReason,
  type Runtime,
  type RuntimeCapabilities,
  type RuntimeDescription,
  type RuntimePaths,
  type RuntimeProblem,
  type RuntimeProvider,
  type RuntimeSnapshot,
  SNAPSHOT_FILES,
  type StartRequest,
} from './api/runtime.ts';
export { fileLines, listingLines, outputTexts, replacedText, runNotes, TOOL_DESCRIPTIONS } from './api/tool-texts.ts';
export {
  type BrowserAction,
  type BrowserPlace,
  type BrowserRequest,
  type BrowserResult,
  type BrowserView,
  type DirectoryListing,
  type FileText,
  type PythonResult,
  type RunOptions,
  type RuntimeTools,
  type ShellResult,
  TOOL_FAILURES,
  ToolError,
  type ToolFailure,
  type ToolProcess,
} from './api/tools.ts';
export { BorrowedRuntime } from './backends/borrowed-runtime.ts';
export { ContainerEngine, type ImageInfo } from './backends/container/engine-api.ts';
export {
  buildEngineImage,
  buildError,
  contextReference,
  type ImageBuild,
  imageName,
} from './backends/container/image-build.ts';
export { ImagePulls } from './backends/container/image-pull.ts';
export { openLocalBox } from './backends/local-box.ts';
export { createRuntimeProviders, DOCKER_SOCKET, podmanSocket } from './backends/providers.ts';
export { refuseReuse } from './backends/reuse.ts';
export { refuseUser } from './backends/users.ts';
export { buildImage, CACHE_MODES, type CacheMode, type ImageLayer } from './images/build.ts';
export { digestOfTree } from './images/digest.ts';
export { loadIntoEngine, rootFileSystemOf, sifOf } from './images/forms.ts';
export { importImage } from './images/import.ts';
export { imageSettingsSchema, nodeImages, openImageStore, type PlacedImageSettings } from './images/node-images.ts';
export { ImageStore, type StoredImage } from './images/store.ts';
export { type EndedCounts, endOwned, labelledProcesses } from './processes/orphans.ts';
export { HELPER_NAME, labelOf, type Owner } from './processes/owner.ts';
export { raisePriority } from './processes/priority.ts';
export { createSpawner } from './spawn/client.ts';
export { ARCHIVE_PREFIX, type Collected, collect } from './workspace/collect.ts';
export { egressEnvironment, installCommand, SANDBOX_PATH } from './workspace/environment.ts';
export { allowedSource, runPrepare } from './workspace/prepare.ts';
