// Package embedded carries the programs that a node runs beside the server:
// the agent, the gateway of tools, gVisor's runsc, its sentry and its reader of pages. scripts/build-engine puts them
// into bin before the server is built.
package embedded

import (
	"bufio"
	"bytes"
	"embed"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cay-run/cay"
)

//go:embed all:bin
var bin embed.FS

// Binaries says where the programs lie after Unpack.
type Binaries struct {
	EngineHash  string // of the engine that starts new instances
	EngineDir   string // the directory of engines, one below it for each hash
	AgentPath   string
	AgentDigest string // SHA-256, in hex
	// GatewayPath is the program mcp-gateway of the template of that name.
	GatewayPath   string
	GatewayDigest string
}

// Unpack writes the programs below a data directory, each under its hash, and
// returns their paths. A program that is there already is left alone, so a
// second call costs nothing, and older engines stay for the snapshots that need
// them.
func Unpack(dataDir string) (Binaries, error) { return unpack(bin, dataDir) }

func unpack(files fs.FS, dataDir string) (Binaries, error) {
	m, err := readManifest(files)
	if err != nil {
		return Binaries{}, cay.Wrap(cay.Unavailable, err, "this cay was built without its engine and agent").
			WithHint("build it with scripts/build")
	}
	agent, gateway := m.sums["cay-agent"], m.sums["cay-mcp-gateway"]
	b := Binaries{
		EngineHash:  m.engine,
		EngineDir:   filepath.Join(dataDir, "engines"),
		AgentPath:   filepath.Join(dataDir, "agents", agent, "cay-agent"),
		AgentDigest: agent,

		GatewayPath:   filepath.Join(dataDir, "agents", gateway, "cay-mcp-gateway"),
		GatewayDigest: gateway,
	}
	engine := map[string]string{"cay-runsc": "cay-runsc", "gvisor_sentry": "gvisor-bin/gvisor_sentry"}
	if err := place(files, filepath.Join(b.EngineDir, b.EngineHash), engine); err != nil {
		return Binaries{}, unpackError(err, dataDir)
	}
	// No part of the engine's hash: one that an earlier server placed may be older.
	if err := renew(files, "cay-page-reader", filepath.Join(b.EngineDir, b.EngineHash, "gvisor-bin/checkpointgofer")); err != nil {
		return Binaries{}, unpackError(err, dataDir)
	}
	for name, path := range map[string]string{"cay-agent": b.AgentPath, "cay-mcp-gateway": b.GatewayPath} {
		if err := place(files, filepath.Dir(path), map[string]string{name: name}); err != nil {
			return Binaries{}, unpackError(err, dataDir)
		}
	}
	return b, nil
}

func unpackError(err error, dataDir string) error {
	return cay.Wrap(cay.Internal, err, "cannot unpack the engine below %s", dataDir)
}

// manifest is what scripts/build-engine says it has built.
type manifest struct {
	engine string
	sums   map[string]string // of each program, by name
}

func readManifest(files fs.FS) (manifest, error) {
	text, err := fs.ReadFile(files, "bin/manifest")
	if err != nil {
		return manifest{}, err
	}
	m := manifest{sums: make(map[string]string)}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		switch f := strings.Fields(lines.Text()); {
		case len(f) == 2 && f[0] == "engine":
			m.engine = f[1]
		case len(f) == 2:
			m.sums[f[1]] = f[0]
		}
	}
	if m.engine == "" {
		return manifest{}, errors.New("the manifest names no engine")
	}
	for _, name := range []string{"cay-runsc", "gvisor_sentry", "cay-page-reader", "cay-agent", "cay-mcp-gateway"} {
		if m.sums[name] == "" {
			return manifest{}, errors.New("the manifest names no " + name)
		}
	}
	return m, nil
}

// place makes a directory of programs appear whole: written aside, synced,
// renamed. A directory that is there was made so.
func place(files fs.FS, dir string, programs map[string]string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp) // nothing is left there after the rename
	if err := os.Chmod(tmp, 0o755); err != nil {
		return err
	}
	for name, to := range programs {
		text, err := fs.ReadFile(files, "bin/"+name)
		if err != nil {
			return err
		}
		if err := write(filepath.Join(tmp, to), text); err != nil {
			return err
		}
	}
	err = os.Rename(tmp, dir)
	if errors.Is(err, fs.ErrExist) {
		return nil // another server was faster
	}
	return err
}

// renew replaces a program that is missing or another one. A running
// one keeps its own.
func renew(files fs.FS, name, path string) error {
	text, err := fs.ReadFile(files, "bin/"+name)
	if err != nil {
		return err
	}
	if there, err := os.ReadFile(path); err == nil && bytes.Equal(there, text) {
		return nil
	}
	aside, err := os.MkdirTemp(filepath.Dir(path), ".new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(aside)
	tmp := filepath.Join(aside, name)
	if err := write(tmp, text); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func write(path string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Sync(), f.Close())
}
