package main

import (
	"html"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// Every command that a page of the console shows to be copied is one of the
// program's, with flags and arguments that it takes.
func TestCommandsOfTheConsole(t *testing.T) {
	shown := regexp.MustCompile("(?:command|text)=\"(cay [^\"]*)\"|`(cay [^`]*)`")
	filled := regexp.MustCompile(`\$?\{[^}]*\}`)
	word := regexp.MustCompile(`"[^"]*"|\S+`)
	found := 0
	err := filepath.WalkDir("../../console/src", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".svelte" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range shown.FindAllStringSubmatch(string(text), -1) {
			command := html.UnescapeString(m[1] + m[2])
			command = strings.Replace(command, "${what}", "kill", 1) // of a list: kill, pause or resume
			args := word.FindAllString(filled.ReplaceAllString(command, "1"), -1)[1:]
			for i := range args {
				args[i] = strings.Trim(args[i], `"`)
			}
			var cli commands
			parser, err := kong.New(&cli)
			if err != nil {
				return err
			}
			if _, err := parser.Parse(args); err != nil {
				t.Errorf("%s shows %q: %v", path, command, err)
			}
			found++
		}
		return nil
	})
	if err != nil || found < 40 {
		t.Errorf("%d commands were found: %v", found, err)
	}
}
