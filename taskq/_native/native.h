/* Declarations for all C files: the module's state, errors, and access to slots.

   No static data is mutable: each interpreter that imports the module gets a State of its own, with
   types, constants, interned names and cached offsets. All other objects belong to callers. */

#ifndef TASKQ_NATIVE_H
#define TASKQ_NATIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030F0000
#error "CPython 3.11 to 3.14"
#endif
#ifdef Py_GIL_DISABLED
#error "these functions rely on the GIL"
#endif

/* Raise it with each change of these files, or of their calls in Python. If a build has another
   number than ``taskq/_native/__init__.py``, it is from other sources and is not used. */
#define TASKQ_NATIVE_VERSION 12
/* Version and digest of these files, for reports; set by build.py. */
#ifndef TASKQ_NATIVE_BUILD
#define TASKQ_NATIVE_BUILD "unknown"
#endif

/* Names of attributes and methods, interned because each job looks them up. */
#define TASKQ_NAMES(X)                                                                             \
    X(_app) X(_callbacks) X(_children_size) X(_latest) X(_line) X(_requests) X(_tag) X(_task)      \
    X(_thread_id) X(abandoned) X(app) X(asleep) X(body_at) X(cancelling) X(children) X(current)    \
    X(delivery) X(done) X(duplicate) X(encode) X(flush) X(flush_soon) X(is_due) X(loop) X(low)     \
    X(lsn) X(mailbox) X(outcomes) X(packs) X(popleft) X(refill) X(remove_done_callback) X(replace) \
    X(scheduled) X(set_exception) X(set_result) X(since) X(stored_payload) X(task) X(usable)

/* Bytes of one step of the CRC. */
enum { CRC_STEP = 8 };

/* Indexes in ``State.places`` of the ``__slots__`` that each job reads or writes. */
enum {
    JOB_DELIVERY, JOB_APP, JOB_PACKS, JOB_CHILDREN, JOB_CHILDREN_SIZE, SLOT_DELIVERY, SLOT_SINCE,
    SLOT_ABANDONED, HANDLE_APP, HANDLE_TASK, HANDLE_TAG, HANDLE_LSN, HANDLE_DUPLICATE, PLACES
};

/* Offset of a slot in objects of a class, valid while the class has this version; 0: unknown. */
typedef struct {
    unsigned int version;
    Py_ssize_t offset;
} Place;

typedef struct {
    Place places[PLACES];
    uint32_t crc[CRC_STEP][256]; /* constant after the import */
    PyObject *zero, *loop_keyword;
    PyObject *future_type; /* asyncio.Future; NULL before its first use */
    PyTypeObject *rest_type, *encoder_type, *decoder_type;
#define X(name) PyObject *name;
    TASKQ_NAMES(X)
#undef X
} State;

static inline State *
state_of(PyObject *module)
{
    return (State *)PyModule_GetState(module);
}

/* Clear the current error; return its exception with the traceback, a new reference. */
static inline PyObject *
take_error(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *kind, *error, *trace;
    PyErr_Fetch(&kind, &error, &trace);
    PyErr_NormalizeException(&kind, &error, &trace);
    if (error != NULL && trace != NULL) {
        (void)PyException_SetTraceback(error, trace);
    }
    Py_XDECREF(kind);
    Py_XDECREF(trace);
    return error;
#endif
}

/* Raise an exception with its traceback; steals the reference. */
static inline void
raise_error(PyObject *error)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(error);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
#endif
}

/* module.c */
int taskq_find_place(PyTypeObject *type, PyObject *name, Place *place);

/* Return the address of an object's slot; NULL, without an error, if the attribute is no plain
   slot. CPython gives a class another version after each change; its own inline caches rely on
   that. */
static inline PyObject **
slot_of(State *state, PyObject *object, int number, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(object);
    Place *place = &state->places[number];
    if ((place->version == 0 || place->version != type->tp_version_tag)
        && !taskq_find_place(type, name, place)) {
        return NULL;
    }
    return (PyObject **)(void *)((char *)object + place->offset);
}

/* Set an attribute like ``PyObject_SetAttr``, faster if it is a slot. */
static inline int
set_slot(State *state, PyObject *object, int number, PyObject *name, PyObject *value)
{
    PyObject **slot = slot_of(state, object, number, name);
    if (slot == NULL) return PyObject_SetAttr(object, name, value);
    PyObject *before = *slot;
    *slot = Py_NewRef(value);
    Py_XDECREF(before);
    return 0;
}

/* Read an attribute like ``PyObject_GetAttr``, faster if it is a slot. */
static inline PyObject *
get_slot(State *state, PyObject *object, int number, PyObject *name)
{
    if (Py_TYPE(object)->tp_getattro == PyObject_GenericGetAttr) {
        PyObject **slot = slot_of(state, object, number, name);
        if (slot != NULL && *slot != NULL) return Py_NewRef(*slot);
    }
    return PyObject_GetAttr(object, name);
}

/* slots.c */
extern PyType_Spec taskq_rest_spec;
PyObject *taskq_run_jobs(PyObject *module, PyObject *const *args, Py_ssize_t count);

/* codecs.c */
extern PyType_Spec taskq_decoder_spec, taskq_encoder_spec;
PyObject *taskq_encode(PyObject *encoder, PyObject *args, PyObject *kwargs);
/* Return the arguments of a payload by name. NULL: ``slowly`` is (args, kwargs) from the slow path,
   or NULL with an error set. */
PyObject *taskq_decode(PyObject *decoder, PyObject *payload, PyObject **slowly);

/* calls.c */
PyObject *taskq_submit(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_new_handle(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_answer_all(PyObject *module, PyObject *pairs);

/* columns.c */
void taskq_fill_crc_table(State *state);
PyObject *taskq_born_records(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_claimed(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_plain_records(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_take(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_unclaimed(PyObject *module, PyObject *const *args, Py_ssize_t count);
PyObject *taskq_whole_records(PyObject *module, PyObject *const *args, Py_ssize_t count);

#endif
