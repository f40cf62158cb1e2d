// Command filters is a step of scripts/build-engine: it compiles the system call
// filters of the sentry and of the gofer, as sandboxes of Cay have them, into the
// gVisor that is laid out in the directory it is given. Each start of a sandbox
// would compile both anew: 17 ms of processor.
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	_ "gvisor.dev/gvisor/pkg/sentry/platform/systrap" // whose filter it is
	sentry "gvisor.dev/gvisor/runsc/boot/filter/config"
	gofer "gvisor.dev/gvisor/runsc/fsgofer/filter/config"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "filters: the directory of gVisor is missing")
		os.Exit(2)
	}
	for _, each := range []struct {
		dir      string
		programs func(wanted func(key string) bool) ([]precompiledseccomp.Program, error)
		options  []string // that every sandbox of Cay has, as they are in a program's key
	}{
		{"runsc/boot/filter", sentry.PrecompiledPrograms, []string{
			`Platform="systrap"`, "HostNetwork=false", "HostFilesystem=false", "NVProxy=false", "TPUProxy=false", "RDMAProxy=false",
		}},
		{"runsc/fsgofer/filter", gofer.PrecompiledPrograms, []string{
			"UDSOpenEnabled=false", "UDSCreateEnabled=false", "DirectFS=false", "CgoEnabled=false",
		}},
	} {
		programs, err := each.programs(func(key string) bool { return has(key, each.options) })
		if err == nil {
			err = write(filepath.Join(os.Args[1], each.dir), programs)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "filters: %s: %v\n", each.dir, err)
			os.Exit(1)
		}
	}
}

func has(key string, options []string) bool {
	for _, option := range options {
		if !strings.Contains(key, option) {
			return false
		}
	}
	return true
}

// write lays down a file that registers the programs of a package.
func write(dir string, programs []precompiledseccomp.Program) error {
	if len(programs) == 0 {
		return errors.New("gVisor knows no such options")
	}
	var text strings.Builder
	text.WriteString("package filter\n\nimport \"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp\"\n\n")
	text.WriteString("func init() {\n\tregistered = func(programs map[string]precompiledseccomp.Program) {\n")
	for _, p := range programs {
		text.WriteString(p.Registration("\t\t", "precompiledseccomp", "programs"))
	}
	text.WriteString("\t}\n}\n")
	return os.WriteFile(filepath.Join(dir, "programs.go"), []byte(text.String()), 0o644)
}
