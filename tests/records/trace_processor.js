// Runs Perfetto's trace processor (the WebAssembly build of its viewer) on the requests read from stdin.
// usage: node trace_processor.js FOLDER   where FOLDER holds the viewer's engine_bundle.js and .wasm files
const fs = require('fs');
const path = require('path');
const vm = require('vm');

const folder = process.argv[2];

// The engine expects to be a web worker: it loads its .wasm by a synchronous request and talks over a port.
class FileRequest {
  open(method, url) { this.file = path.join(folder, path.basename(url)); }
  send() {
    const bytes = fs.readFileSync(this.file);
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
}
const quiet = () => {};
const worker = {
  WorkerGlobalScope: quiet, XMLHttpRequest: FileRequest, location: {href: 'file:///engine_bundle.js'},
  console: {log: quiet, warn: quiet, error: console.error},
  setTimeout, performance, TextDecoder, TextEncoder, crypto: globalThis.crypto,
};
worker.self = worker;
vm.createContext(worker);
vm.runInContext(fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'), worker);

const port = {
  postMessage(reply) {
    for (let done = 0; done < reply.length;) done += fs.writeSync(1, reply, done);
  },
};
worker.onmessage({data: port});
setTimeout(() => {
  const BytesOfWorker = vm.runInContext('Uint8Array', worker);
  port.onmessage({data: new BytesOfWorker(fs.readFileSync(0))});
}, 0);
