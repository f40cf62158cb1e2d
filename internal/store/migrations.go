package store

import (
	"bytes"
	"embed"
	"io/fs"
	"strings"
	"testing/fstest"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Kinds of databases, as the names of migrations have them.
const (
	inSQLite   = "sqlite"
	inPostgres = "postgres"
)

// postgresWords are what PostgreSQL calls what SQLite's migrations say: texts are
// compared by their bytes, whatever the language of the database is.
var postgresWords = strings.NewReplacer(" TEXT", ` TEXT COLLATE "C"`, " WITHOUT ROWID", "")

// migrationsFor are the migrations of one kind of database. One file is for both
// unless its name has a kind: 00043_tags.sqlite.sql.
func migrationsFor(kind string) fs.FS {
	out := fstest.MapFS{}
	entries, err := migrations.ReadDir("migrations")
	for _, e := range entries {
		name, _ := strings.CutSuffix(e.Name(), ".sql")
		_, only, some := strings.Cut(name, ".")
		if some && only != kind {
			continue
		}
		var text []byte
		if text, err = migrations.ReadFile("migrations/" + e.Name()); err != nil {
			break
		}
		if kind == inPostgres {
			text = []byte(postgresWords.Replace(string(bytes.TrimSpace(text)) + "\n"))
		}
		out[e.Name()] = &fstest.MapFile{Data: text, Mode: 0o444}
	}
	if err != nil {
		panic(err) // the files are in the program
	}
	return out
}
