package command

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Reasons of a refusal to start, stable names for the host.
const (
	ReasonNotFound      = "PROGRAM_NOT_FOUND"
	ReasonNotExecutable = "PROGRAM_NOT_EXECUTABLE"
	ReasonDirectory     = "WORKING_DIRECTORY"
	ReasonUser          = "USER"
	ReasonStart         = "PROGRAM_NOT_STARTED"
)

// findProgram resolves argv[0] in the PATH of an environment. A name with a
// slash is taken relative to the working directory, as execve does after the
// change of directory. Relative parts of PATH are skipped.
func findProgram(name string, env []string, cwd *os.File) (string, error) {
	if strings.ContainsRune(name, '/') {
		return name, checkProgram(name, name, cwd)
	}
	path := ""
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, "PATH="); ok {
			path = value
		}
	}
	var worst error = refuse(Precondition, ReasonNotFound, name, "cannot find program %q in PATH %q", name, path)
	for dir := range strings.SplitSeq(path, ":") {
		if !filepath.IsAbs(dir) {
			continue
		}
		candidate := filepath.Join(dir, name)
		err := checkProgram(name, candidate, cwd)
		if err == nil {
			return candidate, nil
		}
		var r *Refusal
		if errors.As(err, &r) && r.Reason == ReasonNotExecutable {
			worst = err
		}
	}
	return "", worst
}

// checkProgram finds what the kernel would refuse, to name it well. The
// kernel still decides.
func checkProgram(name, path string, cwd *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(cwd.Fd()), path, &st, 0); err != nil {
		return refuse(Precondition, ReasonNotFound, name, "cannot find program %q: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o111 == 0 {
		return refuse(Precondition, ReasonNotExecutable, name, "cannot run program %q: it is not an executable file", path)
	}
	return nil
}

// startFailure names what the kernel said when the program was to start.
func startFailure(name, path string, err error) error {
	switch {
	case errors.Is(err, unix.ENOENT):
		return refuse(Precondition, ReasonNotFound, name, "cannot start program %q: its interpreter or loader is missing: %w", path, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.ENOEXEC), errors.Is(err, unix.ETXTBSY):
		return refuse(Precondition, ReasonNotExecutable, name,
			"cannot start program %q as this user in this working directory: %w", path, err)
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		return refuse(Exhausted, ReasonStart, name, "cannot start program %q: the machine is out of processes or memory: %w", path, err)
	default:
		return refuse(Precondition, ReasonStart, name, "cannot start program %q: %w", path, err)
	}
}
