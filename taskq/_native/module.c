/* The module: its functions, its types, and its state. */

#include "native.h"

#include <structmember.h>

int
taskq_find_place(PyTypeObject *type, PyObject *name, Place *place)
{
    place->version = 0;
    if (type->tp_setattro != PyObject_GenericSetAttr) return 0;
    PyObject *slot = PyObject_GetAttr((PyObject *)type, name);
    if (slot == NULL) {
        PyErr_Clear(); /* reading or setting the attribute raises it again */
        return 0;
    }
    if (Py_IS_TYPE(slot, &PyMemberDescr_Type) && PyType_IsSubtype(type, PyDescr_TYPE(slot))) {
        PyMemberDef *member = ((PyMemberDescrObject *)slot)->d_member;
        if (member->type == T_OBJECT_EX && member->flags == 0) {
            place->version = type->tp_version_tag;
            place->offset = member->offset;
        }
    }
    Py_DECREF(slot);
    return place->version != 0;
}

#define FAST(name, doc) {#name, (PyCFunction)(void (*)(void))taskq_##name, METH_FASTCALL, doc}

static PyMethodDef functions[] = {
    FAST(run_jobs, "Run a slot's jobs up to the first that Python must finish."),
    FAST(submit, "Encode a plain call, and append it to its port's line."),
    FAST(new_handle, "Make a JobHandle."),
    {"answer_all", (PyCFunction)taskq_answer_all, METH_O,
     "Answer each (future, lsn, error or other value) of an iterator."},
    FAST(take, "Cut jobs off the head of a line."),
    FAST(born_records, "Make ENQUEUED records of plain jobs."),
    FAST(plain_records, "Make records of four words of eight bytes."),
    FAST(whole_records, "Copy whole records out of a part of a segment."),
    FAST(claimed, "Make deliveries, and enter their claims."),
    FAST(unclaimed, "Remove the claims of deliveries."),
    {NULL, NULL, 0, NULL},
};

static int
add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

static int
execute(PyObject *module)
{
    State *state = state_of(module);

#define X(name)                                                                                    \
    state->name = PyUnicode_InternFromString(#name);                                               \
    if (state->name == NULL) {                                                                     \
        return -1;                                                                                 \
    }
    TASKQ_NAMES(X)
#undef X
    taskq_fill_crc_table(state);
    state->zero = PyLong_FromLong(0);
    state->loop_keyword = PyTuple_Pack(1, state->loop);
    if (state->zero == NULL || state->loop_keyword == NULL) return -1;
    if (add_type(module, &taskq_rest_spec, &state->rest_type) < 0
        || add_type(module, &taskq_encoder_spec, &state->encoder_type) < 0
        || add_type(module, &taskq_decoder_spec, &state->decoder_type) < 0) {
        return -1;
    }
    if (PyModule_AddStringConstant(module, "BUILD", TASKQ_NATIVE_BUILD ", " __VERSION__) < 0) {
        return -1;
    }
    return PyModule_AddIntConstant(module, "VERSION", TASKQ_NATIVE_VERSION);
}

static int
traverse(PyObject *module, visitproc visit, void *arg)
{
    State *state = state_of(module);

    Py_VISIT(state->future_type);
    Py_VISIT(state->rest_type);
    Py_VISIT(state->encoder_type);
    Py_VISIT(state->decoder_type);
    return 0;
}

static int
clear(PyObject *module)
{
    State *state = state_of(module);

    Py_CLEAR(state->zero);
    Py_CLEAR(state->loop_keyword);
    Py_CLEAR(state->future_type);
    Py_CLEAR(state->rest_type);
    Py_CLEAR(state->encoder_type);
    Py_CLEAR(state->decoder_type);
#define X(name) Py_CLEAR(state->name);
    TASKQ_NAMES(X)
#undef X
    return 0;
}

static void
release(void *module)
{
    (void)clear((PyObject *)module);
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
    {0, NULL},
};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_plain",
    .m_doc = "The hot path of plain jobs; see taskq/_native/__init__.py.",
    .m_size = sizeof(State),
    .m_methods = functions,
    .m_slots = slots,
    .m_traverse = traverse,
    .m_clear = clear,
    .m_free = release,
};

PyMODINIT_FUNC PyInit__plain(void);

PyMODINIT_FUNC
PyInit__plain(void)
{
    return PyModuleDef_Init(&definition);
}
