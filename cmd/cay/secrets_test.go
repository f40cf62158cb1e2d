package main

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

func TestReadSecrets(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("of a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("CAY_TEST_SECRET", "of the environment")
	for flag, want := range map[string]string{
		"id=a,src=" + file:                   "of a file",
		"type=file,source=" + file + ",id=a": "of a file",
		"id=a,env=CAY_TEST_SECRET":           "of the environment",
		"id=a,type=env,src=CAY_TEST_SECRET":  "of the environment",
		"id=CAY_TEST_SECRET":                 "of the environment",
		"id=" + file:                         "of a file",
		"id=a,src=" + file + ".none":         "",
		"id=a,env=CAY_TEST_SECRET_NONE":      "",
		"src=" + file:                        "",
		"id=a,what=b":                        "",
		"a":                                  "",
	} {
		got, err := readSecrets([]string{flag})
		if (err != nil) != (want == "") {
			t.Errorf("%s: %v", flag, err)
		}
		for value := range maps.Values(got) {
			if string(value) != want {
				t.Errorf("%s: got %q", flag, value)
			}
		}
	}
}
