package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cay-run/cay/internal/template/dockerfile"
)

func TestTemplateInit(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	files := []string{filepath.Join(dir, ".dockerignore"), filepath.Join(dir, "Dockerfile")}
	code, out, errs := invoke(t, nil, "template", "init", dir)
	if told := slices.Sorted(strings.Lines(out)); code != 0 || !slices.Equal(told, []string{files[0] + "\n", files[1] + "\n"}) {
		t.Fatalf("%d, %q, %q", code, out, errs)
	}
	text, err := os.ReadFile(files[1])
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"as it is":                      string(text),
		"with its suggestions taken up": strings.NewReplacer("# COPY", "COPY", "# CMD", "CMD", "# HEALTHCHECK", "HEALTHCHECK").Replace(string(text)),
	} {
		plan, err := dockerfile.Parse([]byte(text), dockerfile.Options{})
		if err != nil || len(plan.Stages) != 1 {
			t.Errorf("%s: %+v, %v", name, plan, err)
		}
	}

	// A file that is there stays.
	if err := os.WriteFile(files[1], []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	code, out, errs = invoke(t, nil, "template", "init", dir)
	if text, _ := os.ReadFile(files[1]); code != 0 || out != files[0]+"\n" || !strings.Contains(errs, "Dockerfile is there already") || string(text) != "mine" {
		t.Errorf("%d, %q, %q, %q", code, out, errs, text)
	}
}
