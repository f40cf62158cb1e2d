package interp

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"github.com/cay-run/cay/internal/guest"
)

// javaOptions are for a console in a small machine: one that is ready soon
// and leaves memory to others.
var javaOptions = []string{
	"-XX:+UseSerialGC", "-XX:MaxRAMPercentage=50", "-Xlog:disable", "-Xlog:all=error:stderr",
	"-Xshare:auto", "-XX:SharedArchiveFile=" + guest.JavaClasses, // goes without where there is none
	"-Dfile.encoding=UTF-8", "-Dsun.stdout.encoding=UTF-8", "-Dsun.stderr.encoding=UTF-8",
	"-Djava.awt.headless=true",
	// Where the seeds are that every clone must have its own of.
	"--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.util.concurrent=ALL-UNNAMED",
}

// javaClasses is where the compiled kernel is.
func (s *Server) javaClasses() string { return filepath.Join(s.cfg.Dir, "lib", "java") }

// javaKernel is the command of a Java kernel: the classes where they are there,
// else the source, which takes twice as long to start.
func (s *Server) javaKernel() []string {
	argv := append([]string{s.cfg.Java}, javaOptions...)
	if _, err := os.Stat(s.javaClasses()); err == nil {
		return append(argv, "-cp", s.javaClasses(), "Java")
	}
	return append(argv, filepath.Join(s.cfg.Dir, "lib", "Java.java"))
}

// compileJava compiles the Java kernel for those that start later. Without
// Java there is nothing to do.
func (s *Server) compileJava(ctx context.Context) error {
	java, err := exec.LookPath(s.cfg.Java)
	if err != nil || !slices.Contains(s.cfg.Languages, langJava) {
		return nil
	}
	fresh := s.javaClasses() + ".new"
	if err := errors.Join(os.RemoveAll(fresh), os.RemoveAll(s.javaClasses())); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, java, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
		"-m", "jdk.compiler/com.sun.tools.javac.Main", "-nowarn", "-d", fresh, filepath.Join(s.cfg.Dir, "lib", "Java.java"))
	wait, err := s.cfg.Spawn(cmd)
	if err == nil {
		err = wait()
	}
	if err != nil {
		return fmt.Errorf("compile the Java kernel: %w", err)
	}
	return os.Rename(fresh, s.javaClasses())
}
